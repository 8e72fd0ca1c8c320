"""Methods and problems of other packages, found by their entry points.

A package announces them in its ``pyproject.toml``::

    [project.entry-points."digrad.methods"]
    LazyDGD = "lazy_dgd:LazyDGD"

Nothing of a package is imported before one of its names is used. What a single file defines is written
``"file.py:name"``.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from digrad._internal.error_text import one_line
from digrad._internal.user_warnings import warn_user
from digrad.errors import PluginError

METHODS, PROBLEMS = "digrad.methods", "digrad.problems"


@cache
def installed(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by their names.

    Raises:
        PluginError: Two packages use one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise PluginError(
                f"{point.name!r} of {group} is announced by {_package(other)} and by {_package(point)}: "
                f"uninstall one of the two."
            )
    return found


@cache
def load(group: str, name: str) -> Any:
    """Return what a package announces under ``name``.

    Raises:
        PluginError: It cannot be imported.
    """
    point = installed(group)[name]
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # whatever the other package does when it is imported
        raise PluginError(
            f"{name!r} of {_package(point)} cannot be loaded from {point.value!r}: {one_line(error)}; repair or "
            "uninstall that package."
        ) from error


def is_in_file(name: object) -> bool:
    """Return whether a name is that of something in a file, ``"file.py:name"``."""
    return isinstance(name, str) and name.rpartition(":")[0].endswith(".py")


def load_from_file(name: str) -> Any:
    """Execute a file, and return what it defines.

    Args:
        name: ``"file.py:name"``. Modules beside the file can be imported there, as by a script.

    Raises:
        PluginError: The file does not exist, fails, or defines no such name.
    """
    file, _, attribute = name.rpartition(":")
    path = Path(file).absolute()
    if not path.is_file():
        raise PluginError(f"{name!r} cannot be loaded: there is no file {path}.")
    # Not among the modules that can be imported: cloudpickle then sends its functions to other processes by value.
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the file does
        raise PluginError(f"{name!r} cannot be loaded: {one_line(error)}.") from error
    finally:
        sys.path.remove(str(path.parent))
    if not hasattr(module, attribute):
        raise PluginError(f"{name!r} cannot be loaded: {path.name} does not define {attribute!r}.")
    return getattr(module, attribute)


def warn_if_announced(group: str, name: str) -> None:
    """Warn that a package announces a name that is built in: a user of both may expect the other one."""
    if package := package_of(group, name):
        warn_user(
            f"{name!r} of {package} is not used, as digrad has one of its own with that name; rename it there, or "
            "uninstall that package."
        )


class WithPlugins(Mapping[str, Any]):
    """A table of built-in things, continued by what other packages announce in a group.

    A built-in name cannot be taken over; who tries is warned of.

    Args:
        built_in: The table.
        group: Group of entry points.
        fault_of: Says why what a package announces does not belong into the table; None if it does.

    Example:
        >>> table = WithPlugins({"a": 1}, "no.such.group", lambda thing: None)
        >>> list(table), table["a"]
        (['a'], 1)
    """

    def __init__(
        self, built_in: Mapping[str, Any], group: str, fault_of: Callable[[Any], str | None]
    ) -> None:
        self._built_in, self._group, self._fault_of = built_in, group, fault_of

    def __getitem__(self, name: str) -> Any:
        """Return a built-in thing, or import that of a package."""
        if name in self._built_in:
            warn_if_announced(self._group, name)
            return self._built_in[name]
        found = load(self._group, name)
        if fault := self._fault_of(found):
            raise PluginError(f"{name!r} of {package_of(self._group, name)} {fault}.")
        return found

    def __contains__(self, name: object) -> bool:
        """Return whether the name is known, without importing what it stands for."""
        return name in self._built_in or name in installed(self._group)

    def __iter__(self) -> Iterator[str]:
        """Go through the built-in names, then through the others in the order of the alphabet."""
        yield from self._built_in
        yield from sorted(name for name in installed(self._group) if name not in self._built_in)

    def __len__(self) -> int:
        """Return how many names there are."""
        return len(list(iter(self)))


def package_of(group: str, name: str) -> str | None:
    """Return the package that announces a name, with its version; None if none does."""
    point = installed(group).get(name)
    return None if point is None else _package(point)


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
