"""The state of schedulers, scalers and the like as JSON and tensors, such that it comes back the same; no pickle."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from digrad.errors import CheckpointError
from digrad.torch.engines.compression import LinkArrays, LinkKey

_SEQUENCES = {"list": list, "tuple": tuple, "set": set}
_MAPPINGS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_FACTORIES = {"None": None, "int": int, "float": float, "list": list, "dict": dict, "set": set}


def encode(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON that :func:`decode` turns back into the same value; tensors are put aside.

    Raises:
        CheckpointError: It would not come back the same; the message names ``where``.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.integer | np.float64):
        return value.item()  # equal, with the same hash and the same arithmetic
    if isinstance(value, torch.Tensor):
        name = f"value/{len(tensors)}"
        tensors[name] = value.detach().clone()  # safetensors refuses memory that two names share
        return {"tensor": name}
    try:
        if kind in _SEQUENCES.values():
            return {kind.__name__: [encode(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]}
        if kind in _MAPPINGS.values():
            return {kind.__name__: _pairs(value, where, tensors)}
        if kind is defaultdict and value.default_factory in _FACTORIES.values():
            factory = getattr(value.default_factory, "__name__", "None")
            return {"defaultdict": [factory, _pairs(value, where, tensors)]}
    except RecursionError as error:
        raise CheckpointError(f"`{where[:60]}...` contains itself or is nested too deeply") from error
    raise CheckpointError(
        f"`{where}` is of type {kind.__name__}, which cannot be stored: a state must be made of numbers, texts, "
        "tensors, and lists, tuples, sets and dictionaries of them"
    )


def encode_links(links: LinkArrays, tensors: dict[str, torch.Tensor]) -> list[list[Any]]:
    """Return the keys of link state as JSON that :func:`decode_links` turns back; the arrays are put aside.

    >>> tensors = {}
    >>> encode_links({LinkKey("undelivered", 3, agent=1): torch.zeros(2)}, tensors), tensors
    ([['undelivered', 3, 1]], {'link/0': tensor([0., 0.])})
    """
    tensors |= {f"link/{number}": value for number, value in enumerate(links.values())}
    return [list(key) for key in links]


def decode_links(stored: list[list[Any]], tensors: Mapping[str, torch.Tensor]) -> LinkArrays:
    """Return the link state that :func:`encode_links` was given."""
    return {LinkKey(*key): tensors[f"link/{number}"] for number, key in enumerate(stored)}


def _pairs(value: Mapping[Any, Any], where: str, tensors: dict[str, torch.Tensor]) -> list[list[Any]]:
    return [
        [encode(key, f"{where} key {key!r}", tensors), encode(item, f"{where}[{key!r}]", tensors)]
        for key, item in value.items()
    ]


def decode(stored: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that :func:`encode` was given."""
    if not isinstance(stored, dict):
        return stored
    ((kind, content),) = stored.items()
    if kind == "tensor":
        return tensors[content]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, tensors) for item in content)
    factory, pairs = content if kind == "defaultdict" else ("None", content)
    items = {decode(key, tensors): decode(item, tensors) for key, item in pairs}
    return defaultdict(_FACTORIES[factory], items) if kind == "defaultdict" else _MAPPINGS[kind](items)
