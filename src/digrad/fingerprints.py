"""A hash of what a function computes, equal in every process: to tell whether a checkpoint belongs to a run."""

import functools
import hashlib
import types
from typing import Any

DEPTH = 8  # how deep values inside closures and containers are followed


def fingerprint(value: Any) -> str:
    """Return a hash of a function, or of any value that a function may hold.

    A function is hashed by its code, the constants and functions in it, its defaults, what its closure holds, and the
    plain globals it names; never by where it lies in memory. Of an object without readable content only the type
    counts.

    >>> def scaled(factor):
    ...     return lambda x: factor * x
    >>> fingerprint(scaled(1.0)) == fingerprint(scaled(1.0)), fingerprint(scaled(1.0)) == fingerprint(scaled(2.0))
    (True, False)
    """
    digest = hashlib.sha256()
    _add(digest, value, DEPTH)
    return digest.hexdigest()


def _add(digest: Any, value: Any, depth: int) -> None:
    digest.update(type(value).__qualname__.encode())
    if depth == 0 or value is None:
        return
    for part in _parts(value):
        if isinstance(part, bytes):
            digest.update(part)
        else:
            _add(digest, part, depth - 1)


def _parts(value: Any) -> list[Any]:
    """Return the content of a value: bytes, or values to look into."""
    if isinstance(value, bool | int | float | complex | str):
        return [repr(value).encode()]
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_names, *value.co_consts]
    if isinstance(value, types.FunctionType):
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *_closure(value), *_globals(value)]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, tuple | list):
        return [str(len(value)).encode(), *value]
    if isinstance(value, dict):
        return [part for key in sorted(value, key=repr) for part in (key, value[key])]
    return _content(value)


def _content(value: Any) -> list[Any]:
    if hasattr(value, "__wrapped__"):  # what jax.jit and functools.wraps leave
        return [value.__wrapped__]
    if hasattr(value, "tobytes") and hasattr(value, "shape"):
        return [str((value.shape, value.dtype)).encode(), value.tobytes()]
    if isinstance(value, types.ModuleType | type | types.BuiltinFunctionType):
        return [getattr(value, "__name__", "").encode()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    call = vars(type(value)).get("__call__")
    return [
        vars(value) if hasattr(value, "__dict__") else None,
        *([call] if isinstance(call, types.FunctionType) else []),
    ]


def _closure(function: types.FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or ()]


def _globals(function: types.FunctionType) -> list[Any]:
    named = [
        function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__
    ]
    return [
        value
        for value in named
        if isinstance(value, bool | int | float | str | types.FunctionType) or hasattr(value, "tobytes")
    ]
