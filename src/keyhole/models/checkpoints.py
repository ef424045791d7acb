"""From a name to weights: hub ids, local folders, `.gguf` files. Pickled checkpoints are never opened.

What a folder says about itself is checked before a library acts on it: its configuration, which files hold the weights, and
their sizes. A checkpoint is a file from elsewhere, so anything that a library raises on the rest becomes a `ModelError`.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..errors import KeyholeError, MissingExtra, ModelError, UnsafeCheckpoint, UsageError
from ..inputs.formats import first_line, shown
from .families import family_of
from .resize import shrink
from .sites import path_of
from .widths import read as read_widths
from .widths import widths_of

if TYPE_CHECKING:
    from .families import Family

CONFIG, INDEX, WEIGHTS, ADAPTER = (
    "config.json",
    "model.safetensors.index.json",
    "model.safetensors",
    "adapter_config.json",
)
TYPES = {"F64": torch.float32, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The types of safetensors that are told apart. float64 counts as float32, the widest type that a model runs in."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Opened(NamedTuple):
    """A checkpoint in memory."""

    lm: Any
    tokenizer: Any
    revision: str | None
    stored: torch.dtype | None
    """the type of its weights, by its configuration; None if that is not known"""
    widest: torch.dtype | None
    """the type that can hold each of its weights; None if its files are not known"""


def name_of(source: object) -> str:
    """A model's name as a string; a path is accepted too."""
    if isinstance(source, (str, bytes, os.PathLike)) and (name := os.fsdecode(source)):
        return name
    raise UsageError(
        f"A model is named by a hub id, a folder or a .gguf file, as a string or a path; this is {shown(repr(source), 60)}."
    )


def open_checkpoint(
    source: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype,
    revision: str | None,
    trust_remote_code: bool,
    known: Callable[[str], Family],
    split: bool = False,
) -> Opened:
    """A checkpoint, opened. `known` refuses an architecture before its weights are read.

    With `split`, its blocks are spread over the GPUs of this machine, which must have room for all of them.
    """
    source = name_of(source)
    if not isinstance(trust_remote_code, bool):  # with None transformers would ask at the terminal
        raise UsageError(f"trust_remote_code must be True or False; this is {shown(repr(trust_remote_code), 60)}.")
    if split and not is_installed("accelerate"):
        raise MissingExtra("accelerate", "split", "Splitting a model over several GPUs")
    quieten()
    if source.endswith(".gguf"):
        from .gguf import convert

        where = str(convert(Path(source)))
    else:
        where = source
    if os.path.isdir(where):
        inspect(Path(where))
    elif os.path.exists(where):
        raise ModelError(f"{shown(source)} is a file. Give a hub id, a folder with config.json, or a .gguf file.")
    try:
        return _read(where, source, dtype, revision, trust_remote_code, known, split)
    except KeyholeError:
        raise
    except Exception as error:  # transformers, tokenizers and safetensors raise anything on bad files
        raise _told(source, where, error) from error


def _read(
    where: str,
    source: str,
    dtype: str | torch.dtype,
    revision: str | None,
    trust: bool,
    known: Callable[[str], Family],
    split: bool,
) -> Opened:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    options = {"revision": revision, "trust_remote_code": trust}
    config = AutoConfig.from_pretrained(where, **options)
    if config.model_type == "gemma3":  # the text part of a multimodal checkpoint
        config = config.get_text_config()
    family = known(config.model_type)
    if os.path.isdir(where):
        compare_sizes(Path(where), config, shown(source), trust)
    else:
        _inspect_hub(where, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
    except Exception as error:
        if "trust_remote_code" in str(error) or not os.path.isdir(where):
            raise
        raise ModelError(
            f"The tokenizer of {shown(source)} cannot be loaded: {reason(error)} It needs tokenizer.json and "
            "tokenizer_config.json as they were saved: fetch them again."
        ) from error
    if not len(tokenizer):
        raise ModelError(f"{shown(source)} has no tokenizer: fetch its tokenizer.json too.")
    widths = widths_of(config, shown(source))
    if widths is not None and os.path.isdir(where) and not split:
        lm, found = read_widths(Path(where), _files(Path(where)), config, widths, dtype, trust_remote_code=trust)
    else:
        lm, found = AutoModelForCausalLM.from_pretrained(
            where,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=False,
            output_loading_info=True,
            **({"device_map": "auto"} if split else {}),
            **options,
        )
    check_loaded(lm, found, family, shown(source))
    if elsewhere := [name for name, weight in lm.named_parameters() if weight.is_meta]:
        raise ModelError(
            f"{shown(source)} does not fit on the GPUs of this machine: {len(elsewhere)} of its weights, {elsewhere[0]} first, would have "
            "to be fetched for every batch. Use a smaller --dtype, or more GPUs."
        )
    commit = getattr(config, "_commit_hash", None) or revision
    types = _types(where, commit)
    return Opened(lm, tokenizer, commit, _said_type(config) or next(iter(types), None), _widest(types))


def _said_type(config: Any) -> torch.dtype | None:
    """The type of the weights by a configuration."""
    said = getattr(config, "dtype", None)
    said = getattr(torch, said, None) if isinstance(said, str) else said
    return said if isinstance(said, torch.dtype) else None


def _types(where: str, revision: str | None) -> list[torch.dtype]:
    """The floating types in a checkpoint's files, that of the first weight first; none if the files are not on this machine."""
    from safetensors import safe_open
    from transformers.utils import cached_file

    folder = Path(where)
    if not folder.is_dir():
        known = cached_file(
            where,
            CONFIG,
            revision=revision,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if known is None:
            return []
        folder = Path(known).parent
    found: dict[torch.dtype, None] = {}
    for file in _files(folder):
        with safe_open(folder / file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is no dict
                kind = TYPES.get(opened.get_slice(key).get_dtype())
                if kind is not None:
                    found[kind] = None
    return list(found)


def _widest(types: list[torch.dtype]) -> torch.dtype | None:
    return functools.reduce(torch.promote_types, types) if types else None


def _told(source: str, where: str, error: Exception) -> ModelError:
    """A library's error as one of ours, which says what to do."""
    said = str(error)
    name = shown(source)
    if "trust_remote_code" in said:
        return ModelError(
            f"{name} cannot be loaded without running code from its repository, which Keyhole does not do unasked. Read that "
            "code first; if you trust it, use --trust-remote-code (in Python: trust_remote_code=True)."
        )
    if "safetensors" in said and ".bin" in said:
        return UnsafeCheckpoint(_advice(name))
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in said:
        return ModelError(
            f"{name} does not fit in memory: {first_line(error)}. Use a smaller --dtype, or a larger machine; if it should "
            "fit, look for a wrong size in its config.json."
        )
    if where != source:
        hint = f" It was converted to {shown(where)}: remove that folder to convert it again."
    elif os.path.isdir(where):
        hint = " Its files are damaged, incomplete or do not belong together: fetch them again."
    else:
        hint = " A hub id needs the network, or the model in the local hub cache."
    return ModelError(f"{name} cannot be loaded: {reason(error)}{hint}")


def reason(error: BaseException) -> str:
    """The text of a library's error, with its type if the text alone says too little (a KeyError has only the key)."""
    said = " ".join(str(error).split())
    plain = isinstance(error, (OSError, RuntimeError)) or type(error) in (ValueError, Exception)
    said = said if plain and said else f"{type(error).__name__}: {said}" if said else type(error).__name__
    return shown(said, 400).rstrip(".") + "."


# What a folder says about itself


def inspect(folder: Path) -> None:
    """Refuse a folder that is not a complete model, or whose weights would be read from a pickle or from another folder."""
    name = shown(folder)
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{name} is no model folder: it has no config.json.")
    config = read_json(folder / CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{name}: its config.json names no model_type, so its architecture is not known.")
    if (folder / ADAPTER).exists():
        raise ModelError(_adapter(name))
    weights = _weights_named(config, name) or next(filter(lambda n: (folder / n).exists(), (WEIGHTS, INDEX)), None)
    if weights is None:
        if pickled := sorted(path for path in folder.iterdir() if path.suffix in PICKLES):
            raise UnsafeCheckpoint(f"{_advice(name)} (found {shown(pickled[0].name)})")
        raise ModelError(f"{name} has no weights: neither {WEIGHTS} nor {INDEX}.")
    if weights.endswith(".json"):
        for shard in sorted(_shards(read_json(folder / weights), name)):
            if not (folder / shard).is_file():
                raise ModelError(f"{name} lacks {shard}, which its {weights} names. Fetch it again.")


def _inspect_hub(repository: str, revision: str | None) -> None:
    """The same for a hub id: the files that decide what is opened are fetched and checked."""
    from transformers.utils import cached_file

    def fetched(file: str) -> dict[str, Any] | None:
        path = cached_file(
            repository,
            file,
            revision=revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return None if path is None else read_json(Path(path))

    if fetched(ADAPTER) is not None:
        raise ModelError(_adapter(repository))
    weights = _weights_named(fetched(CONFIG) or {}, repository) or INDEX
    if weights.endswith(".json") and (index := fetched(weights)) is not None:
        _shards(index, repository)


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{shown(path)} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{shown(path)} is damaged: it is not JSON ({first_line(error)}). Fetch it again.") from None
    if not isinstance(found, dict):
        raise ModelError(f"{shown(path)} is damaged: a JSON object is needed, this is a {type(found).__name__}.")
    return found


def _weights_named(config: dict[str, Any], name: str) -> str | None:
    """The file of weights a configuration names, if it does."""
    weights = config.get("transformers_weights")
    if weights is None:
        return None
    if not isinstance(weights, str) or not weights.endswith((".safetensors", ".safetensors.index.json")):
        raise UnsafeCheckpoint(f"{_advice(name)} (its config.json names {shown(repr(weights), 60)})")
    return _inside(weights, f"{name}: its config.json")


def _shards(index: dict[str, Any], name: str) -> set[str]:
    """The files that an index names: only safetensors files in the same folder are accepted."""
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise ModelError(f"{name}: its index of weights is damaged: it has no weight_map of names to files.")
    for shard in set(shards.values()):
        if not shard.endswith(".safetensors"):
            raise UnsafeCheckpoint(f"{_advice(name)} (its index names {shown(shard)})")
        _inside(shard, f"{name}: its index of weights")
    return set(shards.values())


def _inside(file: str, what: str) -> str:
    if file != os.path.basename(file) or "\\" in file or "\0" in file:
        raise ModelError(
            f"{what} names {shown(repr(file))}, which is not in the same folder. Keyhole does not follow it."
        )
    return file


def _adapter(name: str) -> str:
    return (
        f"{name} is an adapter, or holds one (adapter_config.json). Merge it into its model first, for example with peft: "
        "AutoPeftModelForCausalLM.from_pretrained(…).merge_and_unload().save_pretrained(FOLDER)"
    )


def _advice(source: str) -> str:
    return (
        f"{source} holds its weights as a pickle, which can run any code, so Keyhole does not open it. "
        "Convert it once, on a machine that holds nothing of value, with transformers: "
        "AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(FOLDER), which writes safetensors"
    )


# What the weights say


def compare_sizes(folder: Path, config: Any, name: str, trust: bool) -> None:
    """Refuse weights whose sizes are not the configuration's, before a model is made of that size: it might not fit in memory."""
    if getattr(config, "quantization_config", None) is not None:  # its weights are stored in other shapes
        return
    stored = dict(_stored(folder))
    layers = config.num_hidden_layers
    if isinstance(layers, bool) or not isinstance(layers, int) or not 0 < layers <= max(len(stored), 1):
        raise ModelError(
            f"{name}: its configuration has {shown(repr(layers), 60)} layers, its files {len(stored)} weights. The configuration "
            "is not that of these weights: fetch both again."
        )
    from transformers import AutoModelForCausalLM

    widths = widths_of(config, name)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
        if widths is not None:
            shrink(lm, family_of(config.model_type), widths)
    prefix = f"{lm.base_model_prefix}."
    for key, weight in lm.state_dict(keep_vars=True).items():
        shape = stored.get(key, stored.get(key.removeprefix(prefix)))
        if shape is not None and shape != list(weight.shape):
            raise ModelError(
                f"{name}: the weight {key} has the shape {shape}, and {list(weight.shape)} by the configuration. The "
                "configuration is not that of these weights: fetch both again."
            )


def _stored(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes of the weights in a folder's files."""
    from safetensors import safe_open

    for file in _files(folder):
        with safe_open(folder / file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is no dict
                yield key, list(opened.get_slice(key).get_shape())


def _files(folder: Path) -> list[str]:
    """The names of the files that hold a folder's weights."""
    config = read_json(folder / CONFIG)
    weights = _weights_named(config, shown(folder)) or (WEIGHTS if (folder / WEIGHTS).exists() else INDEX)
    return sorted(_shards(read_json(folder / weights), shown(folder)) if weights.endswith(".json") else {weights})


def check_loaded(lm: Any, found: dict[str, Any], family: Family, name: str) -> None:
    """Refuse a model with weights that are not in the checkpoint, or a checkpoint with weights that the model does not use."""
    if absent := sorted(found["missing_keys"]):  # they would be filled with random numbers
        raise ModelError(
            f"{name} lacks weights: {', '.join(absent[:3])}{' …' if len(absent) > 3 else ''}. "
            "The checkpoint is incomplete, or not that of a language model."
        )
    if other := sorted(found.get("mismatched_keys") or ()):
        raise ModelError(f"{name} has weights of other sizes than its configuration's, {other[0][0]} first.")
    path = path_of(lm, family.layers)
    first, _, rest = path.partition(".")
    layer = re.compile(rf"(?:.*\blanguage_model\.)?(?:{re.escape(first)}\.)?{re.escape(rest)}\.(\d+)\.")
    layers = len(list(lm.get_submodule(path).children()))
    unused = sorted(found["unexpected_keys"])
    beyond = {int(match[1]) for key in unused if (match := layer.match(key)) and int(match[1]) >= layers}
    if beyond:
        raise ModelError(
            f"{name} has weights of {max(beyond) + 1} layers, and its configuration says {layers}. Scanned like this, it would "
            "be another model: correct config.json, or fetch it again."
        )
    if left := [key for key in unused if _belongs(lm, key)]:
        raise ModelError(
            f"{name} has weights that its configuration does not use: {', '.join(left[:3])}{' …' if len(left) > 3 else ''}. "
            "Without them it would be another model: correct config.json (a setting such as attention_bias), or fetch it again."
        )


def _belongs(lm: Any, key: str) -> bool:
    """Whether an unused weight belongs to a module of the model, for example the bias of a projection that has none. Buffers
    (a causal mask) do not count."""
    owner, _, leaf = key.rpartition(".")
    if leaf not in ("weight", "bias"):
        return False
    for path in (owner, f"{lm.base_model_prefix}.{owner}"):
        try:
            module = lm.get_submodule(path)
        except AttributeError:
            continue
        return bool(owner) and not list(module.children()) and any(True for _ in module.parameters())
    return False


def quieten() -> None:
    """Keep transformers from writing to the terminal."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def is_installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
