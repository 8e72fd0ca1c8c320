"""The agent of torchelastic on one machine: it also knows why workers failed, and saves before it ends."""

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError

from digrad.torch.launch.failures import FAILED, failures_of, say
from digrad.torch.launch.logs import PrefixedLogs
from digrad.torch.launch.preemption import GRACE, ask_to_save, is_saved_for_another
from digrad.torch.launch.rendezvous import Rendezvous
from digrad.torch.launch.rendezvous_rounds import Outcome

_RESTARTS = 1_000_000  # the rendezvous decides
_TERM_GRACE = 5  # seconds between SIGTERM and SIGKILL
_DRAIN = 2.0  # seconds that a reader of our output gets once this process is preempted


class _StartOverError(BaseException):
    """Another machine needs this one in another round."""


class Agent(LocalElasticAgent):
    """Starts, watches and restarts the workers of this machine.

    Args:
        spec: What to run.
        logs: Where workers write.
        node: This machine.
    """

    def __init__(self, spec: WorkerSpec, logs: PrefixedLogs, node: "Node") -> None:
        super().__init__(spec, logs, shutdown_timeout=_TERM_GRACE)
        self._node = node

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._node.check_signals()
        result = super()._monitor_workers(worker_group)  # pyright: ignore[reportCallIssue]
        if result.state == WorkerState.FAILED:
            self._node.note_failures({rank: one.exitcode for rank, one in result.failures.items()})
        return result


class Node:
    """The agents of this machine, round by round, until the run is over.

    Args:
        command: Of a worker, after the interpreter.
        agents: Workers.
        folder: Private.
        received: Signals that ask this process to end.
        **rendezvous: Of :class:`~digrad.torch.launch.rendezvous.Rendezvous`.
    """

    def __init__(
        self, command: Sequence[str], *, agents: int, folder: Path, received: list[int], **rendezvous: Any
    ) -> None:
        self._agents, self._folder, self._received = agents, folder, received
        self._patience: float | None = None  # until when the agents may save
        self._logs = PrefixedLogs(folder)
        self._failures: list[dict[str, Any]] = []
        self._rendezvous = Rendezvous(
            check=self.check_signals, tell=self._tell, start_over=self._start_over, **rendezvous
        )
        self._spec = WorkerSpec(
            "agent", agents, self._rendezvous, entrypoint=sys.executable, max_restarts=_RESTARTS, monitor_interval=0.1,
            args=tuple(word.replace("$", "$$") for word in command),  # which torchelastic expands
        )  # fmt: skip

    def run(self) -> int:
        """Return the exit code."""
        try:
            code = self._run()
        finally:
            self._rendezvous.shutdown()
            self._logs.close(_DRAIN if self._received else None)
        return code

    def _run(self) -> int:
        while True:
            try:
                Agent(self._spec, self._logs, self).run()
            except _StartOverError:
                continue
            except SignalException:
                self._rendezvous.close(f"{self._rendezvous.place} was preempted", FAILED)
                return FAILED
            except RendezvousError as error:
                self._logs.flush()
                told = self._rendezvous.outcome or Outcome(str(error), FAILED)
                self._tell(told)
                return FAILED if told.code is None else told.code
            if is_saved_for_another(self._folder) and not self._received:
                say("another machine was preempted; all agents have saved")
                return FAILED
            return 0

    def check_signals(self) -> None:
        """End the workers if this process is told to; after SIGTERM they save first if they can."""
        if not self._received:
            return
        if self._patience is None:
            is_graceful = self._received[0] == signal.SIGTERM and ask_to_save(self._folder, self._agents)
            self._patience = time.monotonic() + (GRACE if is_graceful else 0.0)
        if len(self._received) > 1 or time.monotonic() > self._patience:
            raise SignalException("preempted", signal.SIGTERM)

    def note_failures(self, codes: dict[int, int]) -> None:
        """Take note of why workers failed, for all machines."""
        self._logs.flush()
        self._failures = failures_of(self._logs.error_files, codes)
        self._rendezvous.failures = [{**failure, "traceback": ""} for failure in self._failures]

    def _tell(self, told: Outcome) -> None:
        """Show what the agents here have left of the round that has ended, and what it is put down to."""
        if told.line:
            others = [one for one in self._failures if one["agent"] != told.cause and not one["has_left"]]
            causes = [one for one in self._failures if one["agent"] == told.cause and one["traceback"]]
            for failure in others:
                self._logs.show(failure["agent"], f"{failure['reason']}\n")
            for failure in causes:
                self._logs.show(failure["agent"], failure["traceback"])
            say(told.line)
        self._failures = []

    def _start_over(self) -> NoReturn:
        raise _StartOverError
