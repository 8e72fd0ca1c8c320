"""The page of a report: plain HTML with its style inside, no scripts, nothing fetched."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d5dae0; --soft: #f5f7f9;
  --faint: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #15181c; --line: #363c44; --soft: #1e2328; --faint: #9aa4ae; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
p { margin: .4rem 0; } .faint { color: var(--faint); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; } td.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; } th.number { text-align: right; }
.badge { display: inline-block; padding: .05rem .5rem; border-radius: 1rem; font-weight: 600; font-size: .85rem;
  white-space: nowrap; color: #ffffff; background: #57606a; }
.good { background: #1a7f37; } .bad { background: #b42318; } .open { background: #8a5a00; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; background: #ffffff; border-radius: 4px;
  border: 1px solid var(--line); display: block; margin: 0 auto; }
figure.narrow img { max-width: min(100%, 26rem); }
figcaption { font-size: .9rem; color: var(--faint); text-align: center; padding-top: .3rem; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 4px; padding: .8rem; overflow-x: auto;
  font-size: .85rem; line-height: 1.4; }
code { font-size: .9em; }
"""


def page(title: str, subtitle: str, sections: Sequence[tuple[str, str]]) -> str:
    """Return a whole page of titled sections; titles are text, bodies are HTML."""
    body = "\n".join(f"<section>\n<h2>{text(name)}</h2>\n{content}\n</section>" for name, content in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{text(title)}</h1>\n<p class="faint">{text(subtitle)}</p>\n</header>\n{body}\n'
        "</body>\n</html>\n"
    )


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


def badge(content: str, look: str) -> str:
    """Return a short coloured label; ``look`` is ``good``, ``bad`` or ``open``."""
    return f'<span class="badge {look}">{text(content)}</span>'


def image(path: Path, caption: str, *, is_narrow: bool = False) -> str:
    """Return a PNG file as a figure, the image inside the page; a narrow one does not fill its width."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    source = f"data:image/png;base64,{data}"
    look = ' class="narrow"' if is_narrow else ""
    return f'<figure{look}><img alt="{text(caption)}" src="{source}"><figcaption>{text(caption)}</figcaption></figure>'


def preformatted(content: str) -> str:
    """Return text that keeps its lines."""
    return f"<pre>{text(content)}</pre>"
