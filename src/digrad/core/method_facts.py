"""The methods as one table, what they state and what is measured: for the command line, reports and documentation."""

import dataclasses
import inspect
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from digrad._internal import plugins
from digrad.checks import choice
from digrad.core.traffic import measure_communication
from digrad.errors import PluginError
from digrad.methods.references import BIBTEX
from digrad.methods.registry import ALL_METHODS


@dataclass(frozen=True)
class MethodFacts:
    """One line about a method."""

    name: str
    summary: str  # first line of its docstring
    needs: tuple[str, ...]  # ("row", "column"); ("doubly or row",) when the user chooses
    vectors: int | str  # d-vectors per edge and step, measured with the default hyper-parameters
    scalars: int | str  # further numbers per edge and step; "n" if as many as agents
    all_reduces: int | str  # d-vectors averaged over all agents per step
    rounds: int | str  # dependent rounds per step
    converges: str  # what METHODS declare; "exact (row: wrong point)" when the user chooses the matrix
    decentralized: bool  # False for a method that needs the true average of all agents
    source: str  # where it was published, or what it is instead

    def cells(self) -> tuple[str | int, ...]:
        """Return the facts in the order in which tables show them, from ``method`` to ``reference``."""
        counts = (self.vectors, self.scalars, self.all_reduces, self.rounds)
        is_decentralized = "yes" if self.decentralized else "no"
        return self.name, " + ".join(self.needs), *counts, self.converges, is_decentralized, self.source


def method_facts(names: Iterable[str] = ()) -> list[MethodFacts]:
    """Return the facts of the named methods, or of all.

    >>> [(row.name, row.needs, row.vectors) for row in method_facts(["CGT", "DGD"])]
    [('CGT', ('row', 'column'), 2), ('DGD', ('doubly or row',), 1)]
    """
    return [_facts(name, method) for name, method in _chosen(names).items()]


def marked(label: str, method: Any) -> str:
    """Return a label as tables show it: marked when the method needs the true average of all agents."""
    return f"{label} (not decentralized)" if "mean" in getattr(method, "needs", ()) else label


def bibtex_of(names: Iterable[str] = ()) -> str:
    """Return the BibTeX entries that the named methods cite, each once, or those of all methods."""
    entries = dict.fromkeys(_entry(method) for method in _chosen(names).values())
    return "\n\n".join(entry for entry in entries if entry)


def section(method: type, title: str) -> str:
    """Return a paragraph of a method's docstring, such as ``Reference``, as one line.

    >>> section(ALL_METHODS["CGT"], "Deviations")[:2]
    '1.'
    """
    text = inspect.cleandoc(method.__doc__ or "")
    found = re.search(rf"^{title}:(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.group(1).split()) if found else ""


def _chosen(names: Iterable[str]) -> dict[str, Any]:
    names = list(names)
    for name in names:
        choice(name, "method", "digrad", ALL_METHODS)
    return {name: ALL_METHODS[name] for name in names} or dict(_loadable())


def _loadable() -> Iterator[tuple[str, Any]]:
    for name in ALL_METHODS:
        try:
            yield name, ALL_METHODS[name]
        except PluginError as error:  # one broken package must not hide all other methods
            warnings.warn(str(error), stacklevel=3)


def _entry(method: Any) -> str:
    """Return the BibTeX entry of a method: one of ours by its key, or what another package brings along."""
    return (getattr(method, "bibtex", None) or BIBTEX.get(getattr(method, "reference", ""), "")).strip()


def _facts(name: str, method: Any) -> MethodFacts:
    package = plugins.package_of(plugins.METHODS, name)
    return MethodFacts(
        name=name,
        summary=((method.__doc__ or "").strip() or name).splitlines()[0],
        needs=_needs(method),
        **_communication(method),
        converges=_converges(method),
        decentralized="mean" not in _needs(method),
        source=getattr(method, "attribution", None) or _short(_entry(method)) or package or "",
    )


def _communication(method: Any) -> dict[str, Any]:
    required = {field.name: 0.5 for field in dataclasses.fields(method) if _is_required(field)}
    try:
        example = method(**required)
        few, more = (measure_communication(example, n) for n in (3, 5))
    except Exception:  # another package's method, which wants other values
        return dict.fromkeys(("vectors", "scalars", "all_reduces", "rounds"), "?")
    numbers = few.numbers if few.numbers == more.numbers else "n"
    return {"vectors": few.vectors, "scalars": numbers, "all_reduces": few.all_reduces, "rounds": few.rounds}


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _needs(method: Any) -> tuple[str, ...]:
    needs = sorted(method.needs, key="row column doubly mean".index)
    return tuple("doubly or row" if need == "doubly" and _chooses(method) else need for need in needs)


def _converges(method: Any) -> str:
    converges = getattr(method, "converges", "not stated")
    return f"{converges} (row: wrong point)" if _chooses(method) else converges


def _chooses(method: Any) -> bool:
    """Return whether the user chooses the matrix."""
    return "mixing" in method.__dataclass_fields__


def _short(entry: str) -> str:
    """Return authors and year of a BibTeX entry, as a table shows them; nothing without an entry."""
    authors = re.search(r"author\s*=\s*\{(.*)\},?$", entry, re.MULTILINE)
    year = re.search(r"year\s*=\s*\{?(\d+)", entry)
    names = [_plain(name.split(",")[0]) for name in (authors.group(1) if authors else "").split(" and ")]
    people = names[0] if len(names) == 1 else " and ".join(names) if len(names) == 2 else f"{names[0]} et al."
    return f"{people} {year.group(1) if year else ''}".strip()


def _plain(name: str) -> str:
    """Return a name without TeX: an accent becomes a combining character."""
    return re.sub(r"[{}]", "", unicodedata.normalize("NFC", re.sub(r"\{\\'(\w)\}", "\\1\u0301", name)))
