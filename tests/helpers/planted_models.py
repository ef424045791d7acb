"""Models with planted truth: every key of the upper layer fires on a known pattern, or on nothing that a rule describes.

The weights are set by hand. Lower layer: four heads copy token features from 1, 2, 3 and 4 tokens back, one averages over the
prefix (a bag of words); its cells turn these into features that are 0 or 1, and into pulses: functions of the whole prefix that
repeat so often that they are as good as random. Upper layer: a key is the sum of the features of its pattern, less a threshold;
a noise key is a random mixture of pulses. A little of such a mixture is in every planted key, so that which of its occurrences
are strongest is random too. Norms change nothing: every embedding has the same norm, and the attention adds a constant to the
residual that is so large that the rest does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from planted_text import BOS, FIRST, LATE, LATE_IN_SENTENCE, PLANTS, SKIP, VOCABULARY, WORDS, Plant, tokenizer
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from keyhole.models.model import Model
from keyhole.models.proof import prove

Floats = npt.NDArray[np.float64]
Side = Literal[1, -1]

HEADS, HEAD, CELLS, CONTEXT = SKIP + 1, 36, 212, 24
D = HEADS * HEAD
LAYER = 1
"""The layer of the planted keys and of the noise keys."""
SCALARS, PERIOD, REACH = 6, 4, 14
"""Hashes of the prefix: how many, after how much their pulses repeat, and how far from 0 they can be."""
NORM, CONSTANT, SHARP = 25.0, 1000.0, 6000.0
"""Norm of every embedding; the large constant; how sharp the heads that look a given way back are."""
STEEP, STEEPEST, NOISY = 50.0, 200.0, 8.0
"""What a gate is multiplied by, and its up divided by: so silu is nearly ReLU. At STEEPEST, what is below 0 becomes 0."""
TOPICAL = 5.0
"""How much of an embedding is its topic: words of a topic are near each other there."""
NOISE_IN_KEYS = 0.05
DEAD = 8
"""Cells of the upper layer that never fire."""
ROTATED = 4
"""The pair of dimensions of a head that rotary heads use: slow enough not to come round within the context."""
ONE, PLUS, MINUS, SPARE, START, COSINE, SINE, LENGTH = (
    ("shared", name) for name in ("one", "plus", "minus", "spare", "start", "cosine", "sine", "1/length")
)
Name = tuple[str, object]


@dataclass(frozen=True)
class PlantedKey:
    """One side of a key, which fires where a pattern holds."""

    layer: int
    cell: int
    side: Side
    plant: Plant

    @property
    def kind(self) -> str:
        return self.plant.kind

    def holds(self, window: list[int], position: int) -> bool:
        """Whether it should fire at a position of a window of token ids (without the start token)."""
        return self.plant.holds(window, position)


@dataclass
class Weights:
    """The weights in a form that both architectures are made from. Rows are over the residual's dimensions."""

    dimensions: dict[Name, int] = field(default_factory=dict)
    embedding: Floats = field(default_factory=lambda: np.zeros((len(VOCABULARY), D)))
    copies: list[list[tuple[int, int, float]]] = field(default_factory=lambda: [[] for _ in range(HEADS)])
    """per head (from, to, times): head 0 averages over the prefix, head k looks k tokens back"""
    lower: list[tuple[Floats, Floats]] = field(default_factory=list)
    """cells of the lower layer: (key, value)"""
    upper: dict[int, tuple[Floats, Floats | None, float]] = field(default_factory=dict)
    """cells of the upper layer: (key, up, steepness of the gate); without an up, it is 1 or −1"""
    keys: list[PlantedKey] = field(default_factory=list)
    noise: list[int] = field(default_factory=list)

    def __getitem__(self, name: Name) -> int:
        number = self.dimensions.setdefault(name, len(self.dimensions))
        assert number < D, "the residual has too few dimensions"
        return number

    def row(self, parts: dict[Name, float]) -> Floats:
        found = np.zeros(D)
        for name, value in parts.items():
            found[self[name]] += value
        return found

    def copy(self, back: int, source: Name, target: Name, times: float = 1.0) -> None:
        self.copies[back].append((self[source], self[target], times))

    def clip(self, parts: dict[Name, float], target: Name) -> None:
        """target = the sum of the parts, at least 0 and at most 1."""
        row, value = self.row(parts), self.row({target: 1})
        self.lower += [(row, value), (row - self.row({ONE: 1}), -value)]


def weights(gated: bool) -> Weights:
    random = np.random.default_rng(14)
    made = Weights()
    _token_features(made, random)
    _copies(made)
    _lower_cells(made)
    _upper_cells(made, gated, random)
    assert len(made.lower) <= CELLS
    assert len(made.upper) == CELLS - DEAD
    return made


def _token_features(made: Weights, random: np.random.Generator) -> None:
    table = made.embedding
    for plant in PLANTS:
        other = TOPICAL if plant.kind == "topic" else 1.0
        for role, tokens, height in (("last", plant.last, 1.0), ("other", plant.other, other)):
            if tokens:
                table[list(tokens), made[role, plant.name]] = height
    for scalar in range(SCALARS):
        for name in [("hash", scalar), *((f"hash {back} back", scalar) for back in range(HEADS))]:
            table[:, made[name]] = random.uniform(-PERIOD / 2, PERIOD / 2, len(VOCABULARY))
    table[BOS] = 0
    table[BOS, made[START]] = 1
    table[:, made[ONE]] = 1
    # two more dimensions give every embedding the same norm and the sum 0
    total, squares = table.sum(1), NORM**2 - (table**2).sum(1)
    spread = np.sqrt(squares / 2 - total**2 / 4)
    table[:, made["pad", 0]], table[:, made["pad", 1]] = -total / 2 + spread, -total / 2 - spread


def _copies(made: Weights) -> None:
    made.copy(0, ONE, PLUS, CONSTANT)
    made.copy(0, ONE, MINUS, -CONSTANT)
    made.copy(0, START, LENGTH)
    for plant in PLANTS:
        source = ("other", plant.name)
        match plant.kind:
            case "topic":
                made.copy(0, source, ("bag", plant.name), 1 / TOPICAL)
            case "absence" | "anywhere":
                made.copy(0, source, ("bag", plant.name))
            case "bigram":
                made.copy(1, source, ("before", plant.name))
            case "skip-gram":
                for back in range(1, SKIP + 1):
                    made.copy(back, source, ("count", plant.name))
    for scalar in range(SCALARS):
        for back in range(HEADS):
            made.copy(back, (f"hash {back} back", scalar), ("hash", scalar), 1 if back else 2)


def _lower_cells(made: Weights) -> None:
    def step(least: int, most: int) -> tuple[float, float]:
        """The middle between 1/least and 1/most, and how steep to be to get from 0 to 1 there."""
        low, high = 1 / most, 1 / least
        return (low + high) / 2, 2.5 / (high - low)

    for plant in PLANTS:
        target = ("feature", plant.name)
        match plant.kind:
            case "topic":
                steep = 2.5 * CONTEXT
                made.clip({("bag", plant.name): steep, LENGTH: -steep * (WORDS - 0.5)}, target)
            case "absence" | "anywhere":
                made.clip({("bag", plant.name): 1.5 * CONTEXT}, target)
            case "skip-gram":
                made.clip({("count", plant.name): 2}, target)
            case "bigram":
                both: dict[Name, float] = {("before", plant.name): 1.0, ("last", plant.name): 1.0, ONE: -1.0}
                made.lower.append((made.row(both), made.row({target: 1})))
    middle, steep = step(LATE + 1, LATE + 2)  # lengths count the start token
    made.clip({LENGTH: -steep, ONE: steep * middle}, ("feature", LATE_IN_SENTENCE.name))
    middle, steep = step(FIRST + 1, FIRST + 2)
    made.clip({LENGTH: steep, ONE: -steep * middle}, ("feature", "first"))
    knots = np.arange(-REACH, REACH)
    for scalar in range(SCALARS):
        heights = np.eye(PERIOD)[np.arange(len(knots) + 1) % PERIOD]  # [knots + 1, pulses]
        heights[0] = 0
        bends = np.diff(np.diff(heights, axis=0), axis=0, prepend=np.zeros((1, PERIOD)))
        for knot, bend in zip(knots, bends, strict=True):
            value = made.row({("pulse", (scalar, pulse)): float(bend[pulse]) for pulse in range(PERIOD)})
            made.lower.append((made.row({("hash", scalar): 1, ONE: -float(knot)}), value))


def _upper_cells(made: Weights, gated: bool, random: np.random.Generator) -> None:
    numbers = [int(cell) for cell in random.permutation(CELLS)]

    def mixture() -> Floats:
        table = random.uniform(-1, 1, (SCALARS, PERIOD))
        table -= table.mean(1, keepdims=True)
        return made.row({("pulse", at): float(height) for at, height in np.ndenumerate(table)})

    def key(features: dict[Name, float], threshold: float) -> Floats:
        """Above 0 if the features' sum is above a threshold, which is half a feature away."""
        return 2 * made.row({**features, ONE: -threshold}) + NOISE_IN_KEYS * mixture()

    for plant in PLANTS:
        last, feature = ("last", plant.name), ("feature", plant.name)
        match plant.kind:
            case "token set" | "affix":
                row = key({last: 1}, 0.5)
            case "topic" | "bigram":
                row = key({feature: 1}, 0.5)
            case "absence":
                row = key({last: 1, feature: -1}, 0.5)
            case "skip-gram" | "anywhere":
                row = key({last: 1, feature: 1}, 1.5)
            case "position" if plant is LATE_IN_SENTENCE:
                row = key({feature: 1}, 0.5)
            case "position":
                row = key({last: 1, ("feature", "first"): 1}, 1.5)
        made.keys.append(PlantedKey(LAYER, cell := numbers.pop(), 1, plant))
        made.upper[cell] = row, None, STEEPEST
    if gated:  # two patterns on the two sides, the second half as strong
        pairs = [[plant for plant in PLANTS if plant.kind in kinds] for kinds in (("token set", "affix"), ("bigram",))]
        for first, second in zip(pairs[0][2:], pairs[1], strict=False):
            ends: tuple[Name, Name] = ("last", first.name), ("feature", second.name)
            cell = numbers.pop()
            made.keys += [PlantedKey(LAYER, cell, 1, first), PlantedKey(LAYER, cell, -1, second)]
            up = made.row({ends[0]: 1, ends[1]: -0.5})
            made.upper[cell] = key(dict.fromkeys(ends, 1.0), 0.5), up, STEEPEST
    made.noise = sorted(numbers[DEAD:])
    for count, cell in enumerate(numbers[DEAD:]):
        if count < SCALARS * PERIOD:  # the peaks of a single pulse
            pulse = ("pulse", divmod(count, PERIOD))
            made.upper[cell] = made.row({pulse: 10, ONE: -9}), None, NOISY
        else:
            made.upper[cell] = mixture() - made.row({ONE: 1.5}), None, NOISY


def planted_model(gated: bool) -> tuple[Model, Weights]:
    """The model, proved, and what is planted in it."""
    made = weights(gated)
    random = np.random.default_rng(15)
    said = [made["said", number] for number in range(8)]
    values, head = np.zeros((CELLS, D)), np.zeros((len(VOCABULARY), D))
    values[:, said] = random.normal(0, 0.3, (CELLS, len(said)))
    head[:, said] = random.normal(0, 1, (len(VOCABULARY), len(said)))
    lower = [np.zeros((CELLS, D)) for _ in range(2)]
    for cell, (row, value) in enumerate(made.lower):
        lower[0][cell], lower[1][cell] = row, value
    signs = random.choice([-1.0, 1.0], CELLS)
    lm = _llama(made, lower, values, head, signs) if gated else _gpt2(made, lower, values, head)
    size = sum(parameter.numel() for parameter in lm.parameters())
    assert size < 750_000, f"the planted model has {size} parameters"
    model = Model(lm, tokenizer(), source=f"planted-{'llama' if gated else 'gpt2'}")
    assert (model.layers, model.gated, model.cells.sizes) == (2, gated, CELLS)
    prove(model)
    return model, made


def _set(parameter: nn.Parameter, rows: Floats) -> None:
    assert parameter.shape == rows.shape
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(rows))


def _heads(made: Weights) -> tuple[Floats, Floats]:
    """The projection to values and the one that writes them, [out, in]."""
    value, output = np.zeros((D, D)), np.zeros((D, D))
    for head, copies in enumerate(made.copies):
        sources = sorted({source for source, _, _ in copies})
        assert len(sources) <= HEAD
        at = {source: head * HEAD + number for number, source in enumerate(sources)}
        for source, target, times in copies:
            value[at[source], source] = 1
            output[target, at[source]] = times
    return value, output


def _scales(positions: float) -> list[float]:
    """What gives a normed residual its size back: before the first attention, and after it. `positions` is what the squares of
    the position embedding sum to."""
    squares = NORM**2 + positions
    return [float(np.sqrt(total / D)) for total in (squares, squares + 2 * CONSTANT**2)]


def _gpt2(made: Weights, lower: list[Floats], values: Floats, head: Floats) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=len(VOCABULARY),
        n_embd=D,
        n_inner=CELLS,
        n_layer=2,
        n_head=HEADS,
        n_positions=CONTEXT,
        activation_function="relu",
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=VOCABULARY["</s>"],
    )
    lm = GPT2LMHeadModel(config)
    for parameter in lm.parameters():
        nn.init.zeros_(parameter)

    def reads(rows: Floats) -> Floats:
        """[out, in] → [in, out] whose columns sum to 0, so that the mean that the norm takes away does not count."""
        rows = rows.copy()
        rows[:, made[SPARE]] -= rows.sum(1)
        return rows.T

    speed = np.pi / (CONTEXT + 2 * SKIP)
    cosine, sine = made[COSINE], made[SINE]
    places = np.zeros((CONTEXT, D))
    places[:, cosine], places[:, sine] = np.cos(speed * np.arange(CONTEXT)), np.sin(speed * np.arange(CONTEXT))
    query, key = np.zeros((D, D)), np.zeros((D, D))
    for back in range(1, HEADS):  # the score is the cosine of (how far back − how far it should be)
        at, turn = back * HEAD, speed * back
        key[at, cosine] = key[at + 1, sine] = 1
        query[at, [cosine, sine]] = np.cos(turn), np.sin(turn)
        query[at + 1, [cosine, sine]] = -np.sin(turn), np.cos(turn)
    value, output = _heads(made)
    stack, before, after = lm.transformer, *_scales(1)
    _set(stack.wte.weight, made.embedding)
    _set(stack.wpe.weight, places)
    first, second = stack.h
    _set(first.attn.c_attn.weight, np.hstack([reads(SHARP * HEAD**0.5 * query), reads(key), reads(value)]))
    _set(first.attn.c_proj.weight, output.T)
    nn.init.constant_(first.ln_1.weight, before)
    for norm in (first.ln_2, second.ln_1, second.ln_2, stack.ln_f):
        nn.init.constant_(norm.weight, after)
    upper = np.zeros((CELLS, D))
    for cell, (row, _, _) in made.upper.items():
        upper[cell] = row
    _set(first.mlp.c_fc.weight, reads(lower[0]))
    _set(first.mlp.c_proj.weight, lower[1])
    _set(second.mlp.c_fc.weight, reads(upper))
    _set(second.mlp.c_proj.weight, values)
    _set(lm.lm_head.weight, head)
    return lm


def _llama(made: Weights, lower: list[Floats], values: Floats, head: Floats, signs: Floats) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=D,
        intermediate_size=CELLS,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=BOS,
        eos_token_id=VOCABULARY["</s>"],
    )
    lm = LlamaForCausalLM(config)
    for parameter in lm.parameters():
        nn.init.zeros_(parameter)
    one = made[ONE]
    speed = float(lm.model.rotary_emb.inv_freq[ROTATED])
    assert speed * CONTEXT < np.pi
    query, key = np.zeros((D, D)), np.zeros((D, D))
    for back in range(
        1, HEADS
    ):  # rotation by position makes of these the cosine of (how far back − how far it should be)
        at, turn = back * HEAD + ROTATED, speed * back
        key[at, one] = 1
        query[at, one], query[at + HEAD // 2, one] = np.cos(turn), -np.sin(turn)
    value, output = _heads(made)
    stack, before, after = lm.model, *_scales(0)
    _set(stack.embed_tokens.weight, made.embedding)
    first, second = stack.layers
    _set(first.self_attn.q_proj.weight, SHARP * HEAD**0.5 * query)
    _set(first.self_attn.k_proj.weight, key)
    _set(first.self_attn.v_proj.weight, value)
    _set(first.self_attn.o_proj.weight, output)
    nn.init.constant_(first.input_layernorm.weight, before)
    for norm in (
        first.post_attention_layernorm,
        second.input_layernorm,
        second.post_attention_layernorm,
        stack.norm,
    ):
        nn.init.constant_(norm.weight, after)
    gate, up = np.zeros((CELLS, D)), np.zeros((CELLS, D))
    for cell, (row, planted, steep) in made.upper.items():
        gate[cell] = steep * row
        up[cell] = signs[cell] / steep * (made.row({ONE: 1}) if planted is None else planted)
    _set(first.mlp.gate_proj.weight, STEEP * lower[0])
    _set(first.mlp.up_proj.weight, np.tile(made.row({ONE: 1 / STEEP}), (CELLS, 1)))
    _set(first.mlp.down_proj.weight, lower[1].T)
    _set(second.mlp.gate_proj.weight, gate)
    _set(second.mlp.up_proj.weight, up)
    _set(second.mlp.down_proj.weight, values.T)
    _set(lm.lm_head.weight, head)
    return lm
