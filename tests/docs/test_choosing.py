"""The code of the pages on sweeps and on step sizes runs as printed."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["sweeps.md", "choosing.md"])
def test_every_block_of_the_page_runs(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(block, page, "exec"), names)
    if page == "sweeps.md":
        assert len(names["found"].table) == (6 + 3) * 2
    else:
        lowest = names["problem"].solve().loss
        assert names["found"].is_bounded
        assert names["trace"].final["loss"] <= lowest + 0.05 * abs(lowest)
