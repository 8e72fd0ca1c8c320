"""All methods that a specification may name: ours, and those that other packages announce."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from digrad._internal import plugins
from digrad.methods import METHODS

_PARTS = ("needs", "init", "estimate", "query", "step")  # of digrad.types.Method


def _fault_of(announced: Any) -> str | None:
    if not (isinstance(announced, type) and dataclasses.is_dataclass(announced)):
        return "is not a method, because it is not a dataclass; see digrad.testing.check_method"
    missing = [name for name in _PARTS if not hasattr(announced, name)]
    if missing:
        return f"is not a method, because it lacks {', '.join(missing)}; see digrad.testing.check_method"
    return None


ALL_METHODS: Mapping[str, type] = plugins.WithPlugins(METHODS, plugins.METHODS, _fault_of)
