"""Graphs as files: JSON, or a text list with one ``sender receiver`` pair per line."""

import json
import re
from pathlib import Path
from typing import Any

from digrad._internal.files import write_atomically
from digrad.errors import ArgumentError, GraphError
from digrad.graphs.digraph import Digraph, from_edges

_HEADER = re.compile(r"#\s*n\s*=\s*(\d+)\s*")


def read(path: str | Path) -> Digraph:
    """Read a digraph from a file.

    A ``.json`` file holds ``{"n": 5, "edges": [[sender, receiver], ...]}`` and perhaps ``"names"``. Any other file
    is a text list: one ``sender receiver`` pair per line, ``#`` starts a comment, and a first line ``# n=5`` gives
    the number of agents; without it, there are as many agents as the largest number plus one.

    Raises:
        GraphError: The file cannot be read, or is malformed; the message names the file and, in a text list,
            the line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a UTF-8 text file"
        raise GraphError(f"graph file {path}: cannot be read ({reason}).") from None
    n, edges, names = _parse_json(path, text) if path.suffix == ".json" else (*_parse_lines(path, text), None)
    try:
        return from_edges(n, edges, names=names)
    except (ArgumentError, GraphError) as error:
        raise GraphError(f"graph file {path}: {error}") from None


def write(graph: Digraph, path: str | Path) -> None:
    """Write a digraph to a file for :func:`read`: JSON when it ends in ``.json``, else a text list without names."""
    if not isinstance(graph, Digraph):
        raise ArgumentError(
            f"`graph` of write must be a Digraph, but got {type(graph).__name__}; write one of a sequence: graph.at(k)."
        )
    path = Path(path)
    if path.suffix == ".json":
        names = {"names": list(graph.names)} if graph.names else {}
        text = json.dumps({"n": graph.n, "edges": graph.edge_array.tolist(), **names})
    else:
        text = "\n".join(
            [f"# n={graph.n}", *(f"{sender} {receiver}" for sender, receiver in graph.edge_array.tolist())]
        )
    write_atomically(path, text + "\n")


def _parse_json(path: Path, text: str) -> tuple[int, list[Any], list[str] | None]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise GraphError(f"graph file {path}, line {error.lineno}: not valid JSON ({error.msg}).") from None
    if (
        not isinstance(content, dict)
        or set(content) - {"names"} != {"n", "edges"}
        or not isinstance(content["edges"], list)
        or not isinstance(content.get("names", []), list)
    ):
        raise GraphError(
            f"graph file {path}: must hold one object with the keys `n`, `edges` and perhaps `names`, "
            'as in {"n": 2, "edges": [[0, 1], [1, 0]]}.'
        )
    return content["n"], content["edges"], content.get("names")


def _parse_lines(path: Path, text: str) -> tuple[int, list[tuple[int, int]]]:
    lines = text.splitlines()
    edges = []
    for number, line in enumerate(lines, start=1):
        fields = line.partition("#")[0].split()
        if fields:
            edges.append(_parse_pair(path, number, fields))
    header = _HEADER.fullmatch(lines[0].strip()) if lines else None
    if header is None and not edges:
        raise GraphError(f"graph file {path}: has neither edges nor a first line `# n=...`; add one of them.")
    n = int(header[1]) if header else 1 + max(max(pair) for pair in edges)
    return n, edges


def _parse_pair(path: Path, number: int, fields: list[str]) -> tuple[int, int]:
    if len(fields) != 2 or not all(field.isascii() and field.isdigit() for field in fields):
        found = " ".join(fields)
        raise GraphError(
            f"graph file {path}, line {number}: expected `sender receiver` as two whole numbers, "
            f"but found `{found}`."
        )
    return int(fields[0]), int(fields[1])
