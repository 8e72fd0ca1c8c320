"""Runs in TensorBoard: a callback for runs under way, and finished traces."""

import os
from pathlib import Path

from digrad._internal.event_files import EventFile, has_tensorboard
from digrad._internal.files import file_stem
from digrad.simulation.simulate import Progress
from digrad.trace import Trace

_FIGURES = ("loss", "grad_norm", "consensus_error")


class TensorBoard:
    """Writes what runs report to TensorBoard's files, one folder per run name.

    As the ``callback`` of :func:`digrad.simulate` or :func:`digrad.compare` it writes loss, gradient norm and
    consensus error after every chunk; :meth:`add` writes every row and column of a finished trace.

    Args:
        folder: Folder for ``tensorboard --logdir``.

    Raises:
        ImportError: TensorBoard is not installed.

    Example:
        >>> import tempfile, digrad as dg
        >>> network = dg.Network(dg.graphs.example5())
        >>> with tempfile.TemporaryDirectory() as folder, TensorBoard(folder) as board:
        ...     method = dg.CGT(step_size=0.05, threshold=5.0)
        ...     trace = dg.simulate(method, dg.problems.example_quadratic(), network, steps=50, callback=board)
        ...     board.folder_of(trace.name).name
        'CGT'
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not has_tensorboard():
            raise ImportError("dg.TensorBoard needs tensorboard; install it with: pip install tensorboard")
        self._folder = Path(folder)
        self._writers: dict[str, EventFile] = {}

    def __call__(self, progress: Progress) -> None:
        """Write the values of a run under way."""
        self._write(progress.name, progress.k, {name: getattr(progress, name) for name in _FIGURES})

    def add(self, trace: Trace) -> None:
        """Write every row of a trace, save values beyond single precision, which is TensorBoard's."""
        names = [name for name in trace.columns if name != "k"]
        for row, k in enumerate(trace.k):
            self._write(trace.name, int(k), {name: float(trace.columns[name][row]) for name in names})

    def folder_of(self, name: str) -> Path:
        """Return where the run of this name is written."""
        return self._folder / file_stem(name)

    def close(self) -> None:
        """Write what is left and close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def __enter__(self) -> "TensorBoard":
        """Return itself; the files are closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files."""
        self.close()

    def _write(self, name: str, k: int, values: dict[str, float]) -> None:
        if name not in self._writers:
            self._writers[name] = EventFile(self.folder_of(name))
        self._writers[name].write(k, values)
