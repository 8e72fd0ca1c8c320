"""What every step has cost, as JSON lines: one file per agent in the folder that ``digrad launch --metrics`` names."""

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

METRICS_VARIABLE = "DIGRAD_METRICS"


class Counted(Protocol):
    """An executor that counts."""

    @property
    def bytes_sent(self) -> int:
        """Bytes that have left so far."""
        ...

    waited: float  # seconds spent waiting for others so far
    late: int  # messages that were not there in time so far


class StepMetrics:
    """The file of one agent; nothing is written unless a folder was named.

    Args:
        agent: Its number.
        net: What counts.
    """

    def __init__(self, agent: int, net: Counted) -> None:
        folder = os.environ.get(METRICS_VARIABLE)
        self._file: Any = None
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = open(Path(folder) / f"agent-{agent}.jsonl", "ab", buffering=0)  # noqa: SIM115
        self._agent, self._net = agent, net
        self._before = self._counts()

    def write(self, k: int) -> None:
        """Write the line of step k, which has just ended."""
        if self._file is None:
            return
        before, self._before = self._before, self._counts()
        changes = {name: self._before[name] - before[name] for name in before}
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        line = json.dumps({"agent": self._agent, "attempt": attempt, "step": k, **changes})
        try:
            self._file.write(f"{line}\n".encode())
        except OSError as error:  # training is worth more than what it has cost
            warnings.warn(
                f"step {k}: {self._file.name} cannot be written ({error.strerror}): no more metrics",
                stacklevel=2,
            )
            self._file.close()
            self._file = None

    def _counts(self) -> dict[str, float]:
        net = self._net
        return {"seconds": time.monotonic(), "waited": net.waited, "bytes": net.bytes_sent, "late": net.late}
