"""Files of what every step of an agent has cost, and of what the user logs."""

import io
import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from digrad._internal.event_files import EventFile, has_tensorboard
from digrad.errors import ArgumentError
from digrad.torch.launch import METRICS_VARIABLE, attempt

_PLACE = ("agent", "attempt", "step")  # which every line of metrics begins with


class Counted(Protocol):
    """An executor that counts."""

    @property
    def bytes_sent(self) -> int:
        """Bytes that have left so far."""
        ...

    waited: float  # seconds spent waiting for others so far
    late: int  # messages that were not there in time so far


class StepMetrics:
    """The files of one agent; nothing is written unless a folder was named.

    Args:
        agent: Its number.
        net: What counts.
    """

    def __init__(self, agent: int, net: Counted) -> None:
        folder = os.environ.get(METRICS_VARIABLE)
        self._file: io.FileIO | None = None
        self._events: EventFile | None = None
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = open(Path(folder) / f"agent-{agent}.jsonl", "ab", buffering=0)  # noqa: SIM115
            if has_tensorboard():
                self._events = EventFile(Path(folder) / "tensorboard" / f"agent-{agent}")
        self._agent, self._net = agent, net
        self._attempt = attempt()
        self._before = self._counts()
        self._own: dict[str, float] = {}  # what the user has logged for the next line

    def log(self, values: Mapping[str, Any]) -> None:
        """Add numbers to the line of the step that ends next.

        Raises:
            ArgumentError: A name is one of those that every line has.
        """
        for name in values:
            if name in (*self._before, *_PLACE):
                raise ArgumentError(
                    f"`{name}` of log is what every line of --metrics has; give the figure another name."
                )
        if self._file is not None:
            self._own |= {
                name: float(value.detach() if isinstance(value, torch.Tensor) else value)
                for name, value in values.items()
            }

    def write(self, k: int) -> None:
        """Write the line of step k, which has just ended."""
        if self._file is None:
            return
        before, self._before = self._before, self._counts()
        values, self._own = {name: self._before[name] - before[name] for name in before} | self._own, {}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = json.dumps(dict(zip(_PLACE, (self._agent, self._attempt, k), strict=True)) | finite)
        try:
            self._file.write(f"{line}\n".encode())
            if self._events:
                self._events.write(k, values)
        except OSError as error:  # training is worth more than what it has cost
            warnings.warn(
                f"step {k}: {self._file.name} cannot be written ({error.strerror}): no more metrics",
                stacklevel=2,
            )
            self.close()

    def close(self) -> None:
        """Write what is left; later steps are not written."""
        for file in (self._file, self._events):
            if file is not None:
                file.close()
        self._file = self._events = None

    def _counts(self) -> dict[str, float]:
        net = self._net
        return {"seconds": time.monotonic(), "waited": net.waited, "bytes": net.bytes_sent, "late": net.late}
