import threading

import numpy as np
import pytest
from matplotlib.figure import Figure

from digrad import plots
from digrad.errors import ArgumentError


def make_figure():
    figure = Figure(figsize=(2, 2))
    figure.add_subplot().plot(np.arange(3), label="line")
    return figure


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_same_figure_gives_same_bytes_without_a_date(tmp_path, kind):
    first, second = (plots.save_figure(make_figure(), tmp_path / name, formats=(kind,))[0] for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert b"CreationDate" not in first.read_bytes()
    assert b"<dc:date>" not in first.read_bytes()


def test_save_figure_makes_the_folder_and_keeps_dots_in_the_name(tmp_path):
    paths = plots.save_figure(make_figure(), tmp_path / "figures" / "step-0.05")
    assert [path.name for path in paths] == ["step-0.05.png", "step-0.05.pdf"]
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.parametrize(
    ("name", "formats", "written"),
    [
        ("loss.png", None, ["loss.png"]),
        ("loss.SVG", None, ["loss.svg"]),
        ("loss.png", ("pdf", "svg"), ["loss.pdf", "loss.svg"]),
        ("loss.v2", None, ["loss.v2.png", "loss.v2.pdf"]),
    ],
)
def test_save_figure_takes_the_format_from_the_suffix(tmp_path, name, formats, written):
    paths = plots.save_figure(make_figure(), tmp_path / name, formats=formats)
    assert [path.name for path in paths] == written


def test_pdf_has_no_type_3_fonts(tmp_path):
    data = plots.save_figure(make_figure(), tmp_path / "a", formats=("pdf",))[0].read_bytes()
    assert b"/Type3" not in data
    assert b"/CIDFontType2" in data


def test_save_figure_rejects_an_unknown_format(tmp_path):
    with pytest.raises(ArgumentError, match="`formats` of save_figure"):
        plots.save_figure(make_figure(), tmp_path / "a", formats=("bmp",))


def test_figures_saved_in_threads_are_the_same(tmp_path):
    def save(name):
        plots.save_figure(make_figure(), tmp_path / name, formats=("png",))

    threads = [threading.Thread(target=save, args=(str(index),)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(tmp_path / f"{index}.png").read_bytes() for index in range(3)}) == 1
