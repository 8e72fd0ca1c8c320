"""Writing figures to files."""

import io
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from digrad.checks import choice
from digrad.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_saving = threading.Lock()


def save_figure(
    figure: "Figure", path_without_suffix: str | os.PathLike[str], *, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write ``figure`` in each format; the same figure gives the same bytes, as no time is stored.

    Args:
        figure: The figure.
        path_without_suffix: Folder, created if missing, and name of the files.
        formats: Some of ``"png"`` (200 dots per inch), ``"pdf"`` and ``"svg"``.

    Returns:
        The paths written.
    """
    import matplotlib

    stem = Path(path_without_suffix)
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in formats:
        choice(kind, "formats", "save_figure", ("png", "pdf", "svg"))
        metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
        buffer = io.BytesIO()
        # Journals refuse Type 3 fonts, and SVG ids are random; both can be set only globally, hence the lock.
        with _saving, matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "digrad"}):
            figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
        written.append(write_atomically(stem.with_name(f"{stem.name}.{kind}"), buffer.getvalue()))
    return written
