"""The pages of the documentation, and the blocks of code on them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def pages() -> list[str]:
    """Return the pages as paths below docs/, without those that are made of docstrings."""
    found = (path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
    return sorted(str(path) for path in found if path.parts[0] not in ("_build", "reference"))


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks in a language, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def titled(page: str) -> dict[str, str]:
    """Return the blocks that a comment names, as in ``<!-- file: train.py -->``."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^<!-- ([^\n]*) -->\n```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return dict(found)
