"""Continuations against transformers' own `generate`, against reading the whole text again for every token, and against the
softmax that sampling must follow."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from families import TINY, tiny, tokenizer

import keyhole
from keyhole.errors import UsageError
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model
from keyhole.uses import generate as uses
from keyhole.uses.generate import Generated, Step, generate

TEXT = "The cat sat"
TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}<pad>{{ turn['role'] }}: {{ turn['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<pad>{% endif %}"
)


def endless(family: str, **changes: Any) -> Model:
    """A model of the family whose end tokens are those of its tokenizer alone."""
    model = tiny(family, **changes)
    model.lm.generation_config.eos_token_id = None
    return model


def tokens(steps: list[Step] | None) -> list[int]:
    assert steps is not None
    return [step.token for step in steps]


def chatting(family: str = "llama") -> Model:
    words = tokenizer()
    words.chat_template = TEMPLATE
    return Model(endless(family).lm, words, source="chatty")


def reread(model: Model, ids: list[int], edits: list[Edit], n_special: int, length: int) -> list[int]:
    """Greedy, without a cache: the whole text is run again for every token."""
    ids = list(ids)
    before = len(ids)
    for _ in range(length):
        with applied(model, edits, n_special), torch.no_grad():
            token = int(model.lm(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
        ids.append(token)
        if token == model.tokenizer.eos_token_id:
            break
    return ids[before:]


@pytest.mark.parametrize("family", sorted(TINY))
def test_greedy_is_what_transformers_generates(family: str) -> None:
    model = endless(family)
    ids = model.batch(model.tokenize([TEXT])).ids
    options = {"eos_token_id": model.tokenizer.eos_token_id, "pad_token_id": 2, "max_new_tokens": 20}
    expected = model.lm.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)
    made = keyhole.generate(model, TEXT, length=20)
    assert tokens(made.original) == expected[0, ids.shape[1] :].tolist()
    assert made.edited is None
    assert [piece.token for piece in made.prompt] == ids[0].tolist()
    assert (made.prompt[0].piece, made.prompt[0].special, made.prompt[1].special) == ("<s>", True, False)


@pytest.mark.parametrize("family", sorted(TINY))
@pytest.mark.parametrize("positions", [None, (3, 10)])
def test_edits_act_as_if_everything_was_read_again(family: str, positions: tuple[int, ...] | None) -> None:
    """Everywhere: on the new tokens too. At positions: on those alone, which the cache must keep."""
    model = endless(family)
    edits = [Edit(1, cell, -6.0, positions) for cell in range(0, model.cells.size(1), 2)]
    batch = model.batch(model.tokenize([TEXT]))
    made = generate(model, TEXT, edits=edits, length=12)
    ids = batch.ids[0].tolist()
    assert tokens(made.original) == reread(model, ids, [], batch.n_special, 12)
    assert tokens(made.edited) == reread(model, ids, edits, batch.n_special, 12)


def test_edits_change_the_text_and_are_gone_afterwards() -> None:
    model = endless("llama")
    edits = [Edit(2, cell, -9.0) for cell in range(24)]
    plain = generate(model, TEXT, length=10)
    made = generate(model, TEXT, edits=edits, length=10)
    assert made.original == plain.original
    assert made.differs is not None
    first = made.differs
    assert tokens(made.original)[:first] == tokens(made.edited)[:first]
    assert tokens(made.original)[first] != tokens(made.edited)[first]
    assert plain.differs is None
    assert generate(model, TEXT, length=10) == plain


def test_the_probability_is_the_models_own() -> None:
    model = endless("gemma2")  # with a cap on its logits
    made = generate(model, TEXT, length=3, temperature=1.5, seed=4)
    ids = model.batch(model.tokenize([TEXT])).ids[0].tolist()
    for step in made.original:
        with torch.no_grad():
            p = torch.softmax(model.lm(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1], 0)
        assert step.p == pytest.approx(float(p[step.token]), rel=1e-3)
        ids.append(step.token)


# Sampling


def test_a_seed_makes_a_continuation_repeatable() -> None:
    model = endless("gpt2")

    def made(seed: int, temperature: float = 1.3) -> Generated:
        return generate(model, TEXT, length=16, temperature=temperature, seed=seed)

    assert made(3) == made(3)
    assert len({tuple(tokens(made(seed).original)) for seed in range(5)}) == 5
    assert tokens(made(3, temperature=1e-300).original) == tokens(generate(model, TEXT, length=16).original)


def test_both_sides_get_the_same_random_numbers() -> None:
    """An edit that changes nothing changes no token, at any temperature; one that changes little changes few of them."""
    model = endless("llama")
    same = generate(model, TEXT, edits=[Edit(1, 3, 1.0)], length=30, temperature=2.0, seed=8)
    assert tokens(same.original) == tokens(same.edited)
    agree = 0
    for seed in range(40):
        little = generate(model, TEXT, edits=[Edit(2, 3, 0.9)], length=1, temperature=1.0, seed=seed)
        agree += tokens(little.original) == tokens(little.edited)
    assert agree >= 36


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
def test_sampling_follows_the_softmax(temperature: float) -> None:
    """The first token over many seeds, against softmax(logits / temperature) on a vocabulary of eight."""
    logits = np.random.default_rng(1).normal(size=8) * 1.5
    p = scipy.special.softmax(logits / temperature)
    drawn = [uses._Sampler(temperature, seed)(logits, step) for seed in range(500) for step in range(8)]
    counts = np.bincount(drawn, minlength=8)
    assert scipy.stats.chisquare(counts, p * len(drawn)).pvalue > 1e-4
    one = [uses._Sampler(temperature, 11)(logits, step) for step in range(4000)]  # and along one continuation
    assert scipy.stats.chisquare(np.bincount(one, minlength=8), p * 4000).pvalue > 1e-4


# Where it ends


def test_it_ends_at_the_end_token() -> None:
    model = Model(copy.deepcopy(endless("gpt2").lm), tokenizer(), source="ending")
    first = generate(model, TEXT, length=8).original
    assert (len(first), first[-1].end, {step.end for step in first[:-1]}) == (8, "length", {None})
    model.lm.generation_config.eos_token_id = [298, first[3].token]
    ended = generate(model, TEXT, length=8).original
    where = tokens(first).index(first[3].token)
    assert (tokens(ended), ended[-1].end) == (tokens(first)[: where + 1], "token")


def test_it_ends_where_the_models_context_ends() -> None:
    model = endless("gpt2")
    made = generate(model, "x" * 60, length=50)  # 61 tokens with the start token, and room for 64
    assert (len(made.original), made.original[-1].end) == (4, "context")
    made = generate(model, "x" * 63, length=50, edits=[Edit(0, 0, 0.0)])
    assert [side[-1].end for side in (made.original, made.edited or [])] == ["context", "context"]
    with pytest.raises(UsageError, match="65 tokens long with its special tokens; tiny-gpt2 was built for 64"):
        generate(model, "x" * 64)


def test_tokens_come_one_by_one_and_the_model_is_free_in_between() -> None:
    model = endless("llama")
    prompt, steps = uses.stream(model, TEXT, edits=[Edit(1, 1, 4.0)], length=3)
    assert len(prompt) == 12
    first = next(steps)
    other = generate(model, "A dog", length=3)  # would see the edits, or wait forever
    rest = list(steps)
    assert [step.side for step in (first, *rest)] == ["original", "edited"] * 3
    assert other == generate(model, "A dog", length=3)
    assert not model.edits


# Chat


def test_a_chat_turn_is_continued_as_transformers_would() -> None:
    model = chatting()
    assert [uses.has_chat(each) for each in (model, tiny("llama"))] == [True, False]
    turn = [{"role": "user", "content": TEXT}]
    given = model.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")
    expected = model.lm.generate(**given, do_sample=False, max_new_tokens=9, eos_token_id=1, pad_token_id=2)
    made = generate(model, TEXT, chat=True, length=9)
    assert tokens(made.original) == expected[0, given["input_ids"].shape[1] :].tolist()
    assert [piece.token for piece in made.prompt] == given["input_ids"][0].tolist()
    shown = [(piece.piece, piece.special) for piece in made.prompt]
    assert shown[:3] == [("<s>", True), ("<pad>", True), ("u", False)]
    assert shown[-2:] == [("</s>", True), ("<pad>", True)]


def test_in_a_chat_turn_positions_still_count_the_texts_own_tokens() -> None:
    model = chatting()
    edits = [Edit(0, cell, -5.0, (2, 7)) for cell in range(24)]
    before = len("<s><pad>user: ".replace("<s>", "1").replace("<pad>", "2"))
    made = generate(model, TEXT, chat=True, edits=edits, length=9)
    ids = [piece.token for piece in made.prompt]
    assert "".join(piece.piece for piece in made.prompt[before : before + len(TEXT)]) == TEXT
    assert tokens(made.edited) == reread(model, ids, edits, before, 9)
    assert tokens(made.edited) != tokens(made.original)
    with pytest.raises(UsageError, match="L0.0 is edited at chosen positions, and the chat template reads the text as"):
        generate(model, "a</s>b", chat=True, edits=[Edit(0, 0, 0.0, (2,))])
    assert generate(model, "a</s>b", chat=True, edits=[Edit(0, 0, 0.0)], length=2).edited


def test_a_template_that_fails_says_so() -> None:
    model = chatting()
    model.tokenizer.chat_template = "{{ raise_exception('no users here') }}"
    with pytest.raises(UsageError, match="chat template of chatty failed: no users here"):
        generate(model, TEXT, chat=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"text": ""}, "The text is empty"),
        ({"text": "a\ud800b"}, "half of a character"),
        ({"length": 0}, "length is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**60}, "seed is"),
        ({"temperature": -0.5}, "The temperature is -0.5; it must be a number from 0"),
        ({"temperature": float("nan")}, "The temperature is nan"),
        ({"temperature": "hot"}, "The temperature is 'hot'"),
        ({"chat": True}, "The tokenizer of tiny-llama has no chat template"),
        ({"edits": [Edit(9, 0, 0.0)]}, "no cell L9.0 to edit"),
        ({"edits": [Edit(0, 0, 0.0, (3, 11))]}, "L0.0 is edited at position 11, but the text has 11 tokens"),
    ],
)
def test_mistakes_are_told(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        generate(tiny("llama"), **{"text": TEXT, **options})


def test_edits_that_overflow_are_told() -> None:
    huge = [Edit(0, cell, 3e38) for cell in range(24)]
    with pytest.raises(UsageError, match="not finite any more. Use smaller scales"):
        generate(endless("gpt2"), TEXT, edits=huge)
