"""Figures whose files journals accept, however they are saved."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.figure

_saving = threading.RLock()


@contextmanager
def publishable() -> Iterator[None]:
    """Save without Type 3 fonts, which journals refuse, and without random ids in SVG files."""
    # Both can be set only globally, hence the lock.
    with _saving, matplotlib.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "digrad"}):
        yield


class Figure(matplotlib.figure.Figure):
    """A matplotlib figure that is also publishable when its user saves it."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save the figure as matplotlib does."""
        with publishable():
            super().savefig(fname, **options)
