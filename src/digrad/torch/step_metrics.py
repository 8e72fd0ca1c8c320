"""What every step has cost: a JSON line in the folder that ``digrad launch --metrics`` names, and TensorBoard's files.

The distance between the agents is known from sketches of their models, which they leave in the store beside their
settings: nobody waits for them, and a sketch has 256 numbers however large the model is.
"""

import io
import json
import math
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from digrad._internal.event_files import EventFile, has_tensorboard
from digrad.torch.launch import METRICS_VARIABLE

SKETCH = 256  # numbers; a distance is estimated with a relative standard deviation of 1/sqrt(2 * 256), 4.4 %
_SEED = 0  # of the signs, which all agents must share


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
        self._attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._signs: torch.Tensor | None = None
        self._before = self._counts()

    def sketch(self, x: torch.Tensor) -> list[float] | None:
        """Return a short random image of a model whose distances are those of the models, on average."""
        if self._file is None:
            return None
        flat = x.detach().reshape(-1)
        padded = torch.nn.functional.pad(flat, (0, -len(flat) % SKETCH))
        if self._signs is None:
            signs = torch.randint(
                0, 2, padded.shape, generator=torch.Generator().manual_seed(_SEED), dtype=torch.int8
            )
            self._signs = (2 * signs - 1).to(padded.device)
        return (padded * self._signs).view(-1, SKETCH).double().sum(0).tolist()

    def write(self, k: int, sketches: Sequence[list[float] | None] | None = None) -> None:
        """Write the line of step k, which has just ended, and how far the agents were apart when they left sketches.

        That was at the last step whose settings were compared, as many steps ago as there are agents, or more.
        """
        if self._file is None:
            return
        before, self._before = self._before, self._counts()
        values = {name: self._before[name] - before[name] for name in before}
        if sketches:
            values |= _distance(sketches)
        line = json.dumps({"agent": self._agent, "attempt": self._attempt, "step": k, **values})
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


def _distance(sketches: Sequence[list[float] | None]) -> dict[str, float]:
    """Return the consensus error, if every agent has left a sketch and it is a number."""
    found = [sketch for sketch in sketches if sketch is not None]
    if len(found) < len(sketches):
        return {}
    rows = torch.tensor(found, dtype=torch.float64)
    error = float((rows - rows.mean(0)).square().sum(1).mean().sqrt())
    return {"consensus_error": error} if math.isfinite(error) else {}
