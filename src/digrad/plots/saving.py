"""Writing figures to files."""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from digrad._internal.files import make_folder, write_atomically
from digrad.checks import choice
from digrad.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")
DPI = 200  # of a PNG


def split_suffix(
    path: str | os.PathLike[str], name: str, owner: str, *, default: Sequence[str] = ("png", "pdf")
) -> tuple[Path, tuple[str, ...]]:
    """Return the path without its suffix, and the formats that the suffix asks for, as :func:`save_figure` takes them.

    Args:
        path: Path of one file with a suffix, or without one of files in the ``default`` formats. What follows the last
            dot is a suffix when it begins with a letter: ``step-0.05`` has none.
        name: The argument that gave the path, for the message.
        owner: Whose argument it is.
        default: The formats when there is no suffix.

    Raises:
        ArgumentError: The suffix is not .png, .pdf or .svg.

    Example:
        >>> split_suffix("a/loss.PDF", "path", "plot"), split_suffix("step-0.05", "path", "plot")
        ((PosixPath('a/loss'), ('pdf',)), (PosixPath('step-0.05'), ('png', 'pdf')))
    """
    path = Path(path)
    suffix = path.suffix.lower().lstrip(".")
    if not suffix[:1].isalpha():
        return path, tuple(default)
    if suffix not in FORMATS:
        listed = " or ".join((", ".join(f".{kind}" for kind in FORMATS[:-1]), f".{FORMATS[-1]}"))
        raise ArgumentError(f"`{name}` of {owner} must end in {listed}, but got {str(path)!r}.")
    return path.with_suffix(""), (suffix,)


def save_figure(
    figure: "Figure", path: str | os.PathLike[str], *, formats: Sequence[str] | None = None
) -> list[Path]:
    """Write ``figure`` in each format; the same figure gives the same bytes, as no time is stored.

    Args:
        figure: The figure.
        path: Folder, created if missing, and name of the files; a suffix .png, .pdf or .svg is no part of the name.
        formats: Some of ``"png"`` (200 dots per inch), ``"pdf"`` and ``"svg"``; by default what the suffix says, or
            PNG and PDF without one.

    Returns:
        The paths written.
    """
    from digrad.plots.figure import publishable

    stem, suffix = Path(path), Path(path).suffix.lower()[1:]
    if suffix in FORMATS:
        stem = stem.with_suffix("")
    if formats is None:
        formats = (suffix,) if suffix in FORMATS else ("png", "pdf")
    make_folder(stem.parent)
    written = []
    with publishable(), _laid_out_once(figure):
        for kind in formats:
            choice(kind, "formats", "save_figure", FORMATS)
            metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
            written.append(write_atomically(stem.with_name(f"{stem.name}.{kind}"), buffer.getvalue()))
    return written


def saved(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    """Return the figure, written to ``path`` if there is one: as its suffix says, without one as PNG and PDF.

    Raises:
        ArgumentError: The suffix is not .png, .pdf or .svg.
    """
    if path is not None:
        stem, formats = split_suffix(path, "path", "plot")
        save_figure(figure, stem, formats=formats)
    return figure


@contextmanager
def _laid_out_once(figure: "Figure") -> Iterator[None]:
    """Fix the layout for all formats: finding it takes longer than drawing, and every file would find it twice.

    It is found at the resolution of a PNG, for which texts are then measured once.
    """
    import matplotlib

    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is None:
        yield
        return
    figure.set_dpi(DPI)
    engine.execute(figure)
    with matplotlib.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)  # "none" would leave an engine, for which every file is drawn twice
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
        figure.set_dpi(dpi)
