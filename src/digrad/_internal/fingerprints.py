"""A hash of what a function computes, equal in every process: to tell whether a checkpoint belongs to a run."""

import dis
import functools
import hashlib
import importlib.util
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from digrad.errors import ArgumentError

_LOOKUPS = ("eval", "exec", "globals")  # what they read stands nowhere in the code
_WRAPPERS = (
    "property",
    "staticmethod",
    "classmethod",
    "cached_property",
    "PjitFunction",
    "_lru_cache_wrapper",
)
_WRAPPED = ("fget", "fset", "__func__", "func", "__wrapped__")


def fingerprint(value: Any) -> str:
    """Return a hash of a function, or of any value that a function may hold.

    It is the hash of a pickle in which functions and classes stand with their content: a function by its code,
    defaults, closure and the globals that it names; what is installed by its name. Nothing is imported.

    Raises:
        ArgumentError: It holds something whose content cannot be read, such as a generator or an open file, or looks
            names up while it runs: with ``eval`` or ``globals``, or by importing a module of the user's own.

    Example:
        >>> def scaled(factor):
        ...     return lambda x: factor * x
        >>> fingerprint(scaled(1.0)) == fingerprint(scaled(1.0)), fingerprint(scaled(1.0)) == fingerprint(scaled(2.0))
        (True, False)
    """
    digest = hashlib.sha256()
    try:
        _Pickler(types.SimpleNamespace(write=digest.update)).dump(value)
    except Exception as error:  # whatever an object does when it is pickled
        raise ArgumentError(
            f"it holds what cannot be compared between processes ({error}); pass it as arrays, numbers or functions"
        ) from error
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    """A pickler that names everything without an identity of its own, functions and classes by their content."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=4)
        self.met: dict[int, tuple[int, Any]] = {}  # kept alive, so that no other object takes over its id

    def persistent_id(self, value: Any) -> Any:
        """Return what stands for a value in the pickle; None: what pickle itself would write."""
        kind: Any = type(value)
        # Equal constants may or may not be one object, which pickle would write down.
        if kind in (str, bytes):
            return f"{kind.__name__} ".encode() + (value.encode() if kind is str else value)
        if kind is tuple:
            return list(value)
        if kind is types.CodeType:
            return [value.co_code, value.co_exceptiontable, value.co_flags, value.co_names, value.co_consts]
        if kind in (set, frozenset):  # whose order is another in every process
            return [kind.__name__, *sorted(map(fingerprint, value))]
        if id(value) in self.met:
            return ["again", self.met[id(value)][0]]
        parts = _parts(value)
        if parts is None:
            return None
        self.met[id(value)] = (len(self.met), value)
        return [kind.__name__, *parts]


def _parts(value: Any) -> list[Any] | None:
    """Return the content of what pickle would name, could not read, or would write differently each time."""
    kind: Any = type(value)
    if kind is types.FunctionType:
        return _of_function(value)
    if kind is types.ModuleType:
        return [value.__name__]
    if isinstance(value, type):
        return _of_class(value)
    if kind.__name__ in _WRAPPERS:  # what they hold besides is no content
        return [getattr(value, name, None) for name in _WRAPPED]
    if hasattr(value, "__array__") and kind.__module__.startswith(("numpy", "jax", "torch")):
        array = np.asarray(value)
        return [array.shape, str(array.dtype), array.tolist() if array.dtype.hasobject else array.tobytes()]
    if isinstance(value, Iterator):
        raise TypeError(f"the first call would use up {kind.__qualname__}")
    attributes = [item for cls in kind.__mro__ for item in vars(cls).items()]
    computed = {name for name, one in attributes if isinstance(one, functools.cached_property)}
    if computed:  # from the other attributes
        make, made_of, state, *items = value.__reduce_ex__(4)
        return [make, made_of, {name: state[name] for name in state or () if name not in computed}, *items]
    return None


def _of_function(function: types.FunctionType) -> list[Any]:
    held: list[Any] = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    held += [function.__defaults__, function.__kwdefaults__, vars(function)]
    module = str(function.__globals__.get("__name__", ""))
    if _is_library(module):
        return [module, function.__qualname__, *held]
    codes = [function.__code__]
    for code in codes:  # and those of the functions that it defines
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    for one in (instruction for code in codes for instruction in dis.get_instructions(code)):
        is_late_import = one.opname == "IMPORT_NAME" and not _is_library(one.argval)
        if is_late_import or (one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in _LOOKUPS):
            raise TypeError(f"{function.__qualname__} looks up {one.argval} while it runs")
    names = list(dict.fromkeys(name for code in codes for name in code.co_names))
    namespaces = [function.__globals__]
    for namespace in namespaces:  # and those of the user's own modules that are named
        named = [(name, namespace[name]) for name in names if name in namespace]
        held += named
        modules = (
            one for _, one in named if isinstance(one, types.ModuleType) and not _is_library(one.__name__)
        )
        namespaces += [vars(one) for one in modules if not any(vars(one) is known for known in namespaces)]
    return [function.__code__, *held]


def _of_class(cls: type) -> list[Any]:
    if _is_library(cls.__module__) and "<locals>" not in cls.__qualname__:
        return [cls.__module__, cls.__qualname__]
    parts: list[Any] = [cls.__qualname__, type(cls), *cls.__bases__]
    for name, attribute in vars(cls).items():
        # Documentation, annotations and the like are no part of what its objects compute.
        is_bookkeeping = name == "_abc_impl" or (name.startswith("__") and not callable(attribute))
        if not is_bookkeeping and not isinstance(attribute, types.MemberDescriptorType):
            parts += [name, attribute]
    return parts


@functools.cache
def _is_library(module: str) -> bool:
    """Return whether a module is installed, rather than written by the user."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "digrad":
        return True
    try:
        spec = importlib.util.find_spec(top) if top else None  # imports nothing
    except ValueError:  # __main__, or a module that no file made
        return False
    return spec is not None and not {"site-packages", "dist-packages"}.isdisjoint(
        Path(spec.origin or "").parts
    )
