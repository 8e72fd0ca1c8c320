"""Photograph the reports that guides/report.md shows, in Chromium: `python docs/pictures.py`."""

import sys
import tempfile
from pathlib import Path

from PIL import Image

from digrad.report import write_report
from digrad.specs import parse_spec, preset, run

HERE = Path(__file__).parent
PLANE = """
name = "Five agents in two dimensions"
steps = 300
start = "normal"
start_scale = 3.0
graph.kind = "example5"
problem.kind = "example_quadratic"
methods.CGT = {step_size = 0.05, threshold = 2.0}
"""
POINT = """const drawing = document.querySelector("#curve-grad_norm svg"), box = drawing.getBoundingClientRect();
drawing.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + 330, clientY: box.top + 50}));"""
LOOK = """document.querySelector("#planes").closest("section").scrollIntoView();
document.querySelector('[data-agent="2"]').dispatchEvent(new Event("focus"));"""


def take_pictures(folder: Path) -> None:
    """Write the three pictures: the demo in light and on a phone, the plane and the network in dark."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from browser import chromium

    with tempfile.TemporaryDirectory() as name, chromium(Path(name) / "profile") as browser:
        pages = [Path(name) / kind / "report.html" for kind in ("demo", "plane")]
        for spec, page in zip((preset("demo"), parse_spec(PLANE)), pages, strict=True):
            run(spec, page.parent, report=write_report)
        demo, plane = pages
        for kind, page, fragment, size, show in (
            ("light", demo, "theme=light", (1180, 1010), f"scrollTo(0, 120);{POINT}"),
            ("dark", plane, "theme=dark&at=4", (720, 1150), LOOK),
            (
                "phone",
                demo,
                "theme=light",
                (390, 844),
                "document.querySelector('#controls').scrollIntoView()",
            ),
        ):
            picture = folder / f"report-{kind}.png"
            browser.open(page, fragment, width=size[0], height=size[1])
            browser.run(show)
            browser.screenshot(picture)
            image = Image.open(picture).convert("RGB")
            image.thumbnail((900, 1000), Image.Resampling.LANCZOS)
            image.quantize(200, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                picture, optimize=True
            )


if __name__ == "__main__":
    take_pictures(HERE / "images")
