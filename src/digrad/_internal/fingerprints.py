"""A hash of what a function computes, equal in every process: to tell whether a checkpoint belongs to a run."""

import dis
import functools
import hashlib
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from typing import Any

import numpy as np

from digrad.errors import ArgumentError

# What a class holds besides what its author wrote: no part of what its objects compute.
_BOOKKEEPING = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__", "__annotate_func__"}
    | {"__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__match_args__", "_abc_impl"}
    | {"__abstractmethods__", "__parameters__", "__orig_bases__"}
)  # fmt: skip
_INSTALLED = tuple(f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
_LOOKUPS = frozenset({"eval", "exec", "globals"})  # what they read stands nowhere in the code
_ARRAYS = ("numpy", "jax", "jaxlib", "torch")  # whose arrays are read as NumPy arrays


def fingerprint(value: Any) -> str:
    """Return a hash of a function, or of any value that a function may hold.

    A function is hashed by its code, the constants and functions in it, its defaults, its attributes, what its closure
    holds, and the globals and imports that it names, also in the functions defined inside it; an object by its class
    and its attributes; what is installed from elsewhere by its name. Nothing is hashed by where it lies in memory.

    Raises:
        ArgumentError: It holds something whose content cannot be read, such as a generator or an open file, or looks
            names up while it runs, with ``eval`` or ``globals``.

    Example:
        >>> def scaled(factor):
        ...     return lambda x: factor * x
        >>> fingerprint(scaled(1.0)) == fingerprint(scaled(1.0)), fingerprint(scaled(1.0)) == fingerprint(scaled(2.0))
        (True, False)
    """
    walk = _Walk()
    try:
        walk.add(value)
    except RecursionError:
        raise ArgumentError(f"{value!r} is nested too deeply for a fingerprint.") from None
    return walk.digest.hexdigest()


class _Walk:
    """Hashes values in the order in which they are met; an object that is met again counts by its number."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.met: dict[int, tuple[int, Any]] = {}  # kept alive, so that no other object takes over its id

    def add(self, value: Any) -> None:
        self._write(type(value).__qualname__)
        # Equal constants may or may not be one object: only what has an identity is recognised.
        if not isinstance(value, _PLAIN | tuple | types.CodeType | None):
            if id(value) in self.met:
                self._write(f"again {self.met[id(value)][0]}")
                return
            self.met[id(value)] = (len(self.met), value)
        parts = list(_parts(value))
        self._write(str(len(parts)))
        for part in parts:
            if isinstance(part, _Bytes):
                self._write(part.content)
            else:
                self.add(part)

    def _write(self, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.digest.update(len(data).to_bytes(8, "little"))  # or ("ab", "c") would equal ("a", "bc")
        self.digest.update(data)


class _Bytes:
    """Content that is hashed as it is."""

    def __init__(self, content: str | bytes) -> None:
        self.content = content


_BUILT_IN: Any = types.BuiltinMethodType
_PLAIN: Any = bool | int | float | complex | str | bytes


def _parts(value: Any) -> Iterator[Any]:
    """Yield the content of a value: bytes, or values to look into."""
    if isinstance(value, _PLAIN) and type(value).__module__ == "builtins":
        yield _Bytes(value if isinstance(value, bytes) else repr(value))
    elif value is None or isinstance(value, types.EllipsisType | types.NotImplementedType):
        return
    elif isinstance(value, types.CodeType):
        yield from (value.co_code, value.co_names, *value.co_consts)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.ModuleType):
        yield _Bytes(value.__name__)
    elif isinstance(value, _BUILT_IN) and not isinstance(value.__self__, types.ModuleType | None):
        yield from (value.__name__, value.__self__)  # such as `array.dot`
    elif _is_named_by_library(value):
        yield _Bytes(f"{getattr(value, '__module__', None)}.{value.__qualname__}")
    elif isinstance(value, type):
        yield from _of_class(value)
    elif type(value) in (tuple, list):
        yield from value
    elif type(value) in (dict, types.MappingProxyType):
        yield from _of_dict(value)
    elif type(value) in (set, frozenset):
        yield from map(_Bytes, sorted(map(fingerprint, value)))
    else:
        yield from _of_object(value)


def _of_dict(value: Any) -> Iterator[Any]:
    keys = sorted(value) if all(isinstance(key, str) for key in value) else list(value)
    for key in keys:
        yield from (key, value[key])


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    module = str(function.__globals__.get("__name__", ""))
    if _is_library(module):
        yield _Bytes(f"{module}.{function.__qualname__}")
    else:
        yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
        yield {name: v for name, v in vars(function).items() if name not in functools.WRAPPER_ASSIGNMENTS}
        names = list(dict.fromkeys(name for code in _codes(function.__code__) for name in code.co_names))
        for name in names:
            if name in function.__globals__:
                yield from (name, function.__globals__[name])
                yield from _of_module(function.__globals__[name], names, set())
        for module in _imports(function):
            yield from _of_module(module, names, set())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is not bound yet
            yield _Bytes("empty")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and those of the functions that it defines."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _imports(function: types.FunctionType) -> Iterator[types.ModuleType]:
    """Yield the modules of the user's own that a function imports while it runs; libraries count by their names.

    Raises:
        ArgumentError: Such a module is not loaded, or names are looked up that do not stand in the code.
    """
    for code in _codes(function.__code__):
        for one in dis.get_instructions(code):
            is_free = one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval not in function.__globals__
            if is_free and one.argval in _LOOKUPS:
                raise ArgumentError(
                    f"{function.__qualname__} calls {one.argval}(), and what that finds cannot be compared between "
                    "processes; write the names out"
                )
            if one.opname == "IMPORT_NAME" and not _is_library(one.argval):
                if one.argval not in sys.modules:
                    raise ArgumentError(
                        f"{function.__qualname__} imports {one.argval or 'a module beside it'} while it runs, whose "
                        "content cannot be compared between processes; import it at the top of its file"
                    )
                yield sys.modules[one.argval]


def _of_module(module: Any, names: list[str], seen: set[int]) -> Iterator[Any]:
    """Yield what a function may read from a module of the user's own: the attributes that it names."""
    if not isinstance(module, types.ModuleType) or _is_library(module.__name__) or id(module) in seen:
        return
    seen.add(id(module))
    for name in names:
        if name in vars(module):
            yield from (name, vars(module)[name])
            yield from _of_module(vars(module)[name], names, seen)


def _of_class(cls: type) -> Iterator[Any]:
    yield _Bytes(cls.__qualname__)
    yield from (type(cls), *cls.__bases__)
    for name, attribute in sorted(vars(cls).items()):
        if name not in _BOOKKEEPING and not isinstance(attribute, types.MemberDescriptorType):
            yield from (name, attribute)


def _of_object(value: Any) -> Iterator[Any]:
    if isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, functools.cached_property):
        yield value.func
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif type(value).__name__ in (
        "PjitFunction",
        "_lru_cache_wrapper",
    ):  # what they keep besides is no content
        yield value.__wrapped__
    elif hasattr(value, "__array__") and type(value).__module__.partition(".")[0] in _ARRAYS:
        yield from _of_array(value)
    else:
        yield from _of_state(value)


def _of_array(value: Any) -> Iterator[Any]:
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception as error:
        raise _unreadable(value) from error
    yield _Bytes(str((array.shape, array.dtype)))
    if array.dtype.hasobject:
        yield array.tolist()
    else:
        yield _Bytes(np.ascontiguousarray(array).tobytes())


def _of_state(value: Any) -> Iterator[Any]:
    """Yield what pickle would store of an object."""
    try:
        with warnings.catch_warnings():  # Python 3.14 no longer stores iterators: they are refused there
            warnings.simplefilter("ignore", DeprecationWarning)
            state = value.__reduce_ex__(4)
    except Exception as error:
        raise _unreadable(value) from error
    if isinstance(state, str):
        yield _Bytes(f"{type(value).__module__}.{state}")
    else:
        yield type(value)
        for part in state:
            if isinstance(part, dict):
                yield {name: v for name, v in part.items() if not _is_derived(type(value), name)}
            else:
                yield list(part) if isinstance(part, Iterator) else part  # the items of a list or dictionary


def _is_derived(cls: type, name: Any) -> bool:
    """Return whether an attribute is a computed value that was kept, or says what something is called."""
    is_attribute = isinstance(name, str)
    return is_attribute and (
        name in functools.WRAPPER_ASSIGNMENTS
        or isinstance(getattr(cls, name, None), functools.cached_property)
    )


def _is_named_by_library(value: Any) -> bool:
    name, module = getattr(value, "__qualname__", None), getattr(value, "__module__", None)
    is_named = callable(value) and isinstance(name, str) and "<locals>" not in name
    return is_named and (module is None or (isinstance(module, str) and _is_library(module)))


@functools.cache
def _is_library(module: str) -> bool:
    """Return whether a module is installed, rather than written by the user."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "digrad":
        return True
    found = sys.modules.get(top)
    if found is None:
        found = PathFinder.find_spec(top)  # says where a module is without importing it
    file = getattr(found, "__file__", None) or getattr(found, "origin", None) or ""
    return file.startswith(_INSTALLED)


def _unreadable(value: Any) -> ArgumentError:
    return ArgumentError(
        f"it holds a {type(value).__module__}.{type(value).__qualname__}, whose content cannot be compared between "
        "processes; pass what it holds as arrays, numbers or functions"
    )
