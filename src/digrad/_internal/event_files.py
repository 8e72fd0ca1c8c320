"""The files that TensorBoard reads; it is imported when the first of them is opened."""

import importlib.util
import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NUMBERS = itertools.count()  # of the files of this process
LARGEST = float(np.finfo(np.float32).max)


def has_tensorboard() -> bool:
    """Return whether TensorBoard is installed."""
    return importlib.util.find_spec("tensorboard") is not None


class EventFile:
    """Values by name and step, in a new file of a folder.

    Args:
        folder: Folder of one run.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2  # the names of both are made at run time
        self._summary: Any = summary_pb2
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        # Not TensorBoard's own writer: it writes in a thread, which dies without notice when the disk is full.
        self._file = open(folder / name, "wb", buffering=0)  # noqa: SIM115
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write values, save those beyond single precision, which is TensorBoard's."""
        entries = [
            self._summary.Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
            if abs(value) < LARGEST
        ]
        self._add(step=step, summary=self._summary.Summary(value=entries))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event.Event(wall_time=time.time(), **fields).SerializeToString())
