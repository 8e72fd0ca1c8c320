"""The page of a report: HTML with its style, its script and its data inside; nothing is fetched."""

import base64
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

# In the order in which they use each other.
SCRIPTS = (
    "view",
    "dom",
    "scales",
    "series",
    "curves",
    "pointer",
    "controls",
    "table",
    "network",
    "labels",
    "plane",
    "main",
)
# The browser itself refuses whatever would leave the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(
    title: str,
    subtitle: str,
    sections: Sequence[tuple[str, str]],
    *,
    data: Mapping[str, Any],
    times: Mapping[str, Any],
) -> str:
    """Return a whole page of titled sections; titles are text, bodies are HTML.

    Args:
        title: Title of the page.
        subtitle: One line below it.
        sections: In their order.
        data: Numbers that the script draws.
        times: Durations, the only part that differs between equal runs.
    """
    body = "\n".join(f"<section>\n<h2>{text(name)}</h2>\n{content}\n</section>" for name, content in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{_asset('style.css')}</style>\n</head>\n<body>\n"
        f'<header>\n<div><h1>{text(title)}</h1>\n<p class="faint">{text(subtitle)}</p></div>\n'
        f'<div id="theme"></div>\n</header>\n{body}\n'
        f"{_json('data', data)}\n{_json('times', times)}\n<script>\n{_script()}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return (files("digrad.report") / "assets" / name).read_text(encoding="utf-8")


def _script() -> str:
    return '"use strict";\n{\n' + "\n".join(_asset(f"{name}.js") for name in SCRIPTS) + "}\n"


def _json(name: str, content: Mapping[str, Any]) -> str:
    # No text of a user may end the element.
    packed = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace(
        "<", "\\u003c"
    )
    return f'<script type="application/json" id="{name}">{packed}</script>'


def text(content: object) -> str:
    """Return any value as text that is safe inside HTML."""
    return html.escape(str(content))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Return a table; cells are HTML, and the columns ``numbers`` are aligned to the right."""
    look = {column: ' class="number"' for column in numbers}
    cells = "".join(f"<th{look.get(column, '')}>{text(name)}</th>" for column, name in enumerate(head))
    lines = [
        "<tr>"
        + "".join(f"<td{look.get(column, '')}>{cell}</td>" for column, cell in enumerate(row))
        + "</tr>"
        for row in rows
    ]
    body = "\n".join(lines)
    return f'<div class="scroll"><table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def once_each(bodies: Iterable[tuple[str, str]]) -> str:
    """Return bodies by name, equal ones once under all their names; no name is needed where all are equal."""
    names: dict[str, list[str]] = {}
    for name, body in bodies:
        names.setdefault(body, []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return "\n".join(f"<h3>{text(', '.join(found))}</h3>\n{body}" for body, found in names.items())


def badge(content: str, look: str) -> str:
    """Return a short coloured label; ``look`` is ``good``, ``bad`` or ``open``."""
    return f'<span class="badge {look}">{text(content)}</span>'


def image(path: Path, caption: str) -> str:
    """Return a PNG file as a figure, the image inside the page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    source = f"data:image/png;base64,{data}"
    return (
        f'<figure><img alt="{text(caption)}" src="{source}"><figcaption>{text(caption)}</figcaption></figure>'
    )


def preformatted(content: str, name: str, *, file: str | None = None) -> str:
    """Return text that keeps its lines, with a button that copies it, or saves it as ``file``."""
    saving = f' data-name="{text(file)}"' if file else ""
    word = f"Save {file}" if file else "Copy"
    button = (
        f'<button type="button" class="script-only" data-copy="{text(name)}"{saving}>{text(word)}</button>'
    )
    return f'<pre id="{text(name)}">{text(content)}</pre>\n<p>{button}</p>'
