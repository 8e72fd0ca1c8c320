"""Methods as the compiled loop sees them: numbers are traced, so that a new step size does not compile again.

A field annotated with ``float`` is a leaf of the method's pytree; every other field (a name, a flag, a count)
is static.
"""

import dataclasses
from functools import cache
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from digrad.methods.fields import numeric_fields, with_fields


def numbers_only(method: Any, dtype: npt.DTypeLike) -> Any:
    """Return the method as a pytree of floats and columns of them, with zero in place of a schedule."""
    _register(type(method))
    values: dict[str, Any] = {name: getattr(method, name) for name in numeric_fields(type(method))}
    scheduled = {name: 0.0 for name, value in values.items() if callable(value)}
    columns = {
        name: np.asarray(value, dtype)
        for name, value in values.items()
        if np.ndim(value) and not callable(value)
    }
    whole = {name: float(value) for name, value in values.items() if isinstance(value, int)}
    return with_fields(method, {**columns, **scheduled, **whole})


@cache
def _register(method_type: type) -> None:
    """Make a method class a pytree whose leaves are its numbers; unflattening skips the checks of its constructor."""
    numeric = numeric_fields(method_type)
    static = tuple(field.name for field in dataclasses.fields(method_type) if field.name not in numeric)

    def flatten(method: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(method, name) for name in numeric], tuple(getattr(method, name) for name in static)

    def unflatten(values: tuple[Any, ...], leaves: Any) -> Any:
        method = object.__new__(method_type)
        method.__dict__.update(zip(static, values, strict=True))
        method.__dict__.update(zip(numeric, leaves, strict=True))
        return method

    jax.tree_util.register_pytree_node(method_type, flatten, unflatten)
