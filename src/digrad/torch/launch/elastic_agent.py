"""The agent of torchelastic on one machine: it also knows why workers failed, and lets them save before it ends."""

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError

from digrad.torch.launch.failures import FAILED, LEFT, Failure, failures_of, say
from digrad.torch.launch.logs import PrefixedLogs, show
from digrad.torch.launch.preemption import SAVE, SAVE_TIMEOUT
from digrad.torch.launch.rendezvous import Rendezvous
from digrad.torch.launch.rendezvous_rounds import Outcome
from digrad.torch.launch.rendezvous_store import SAVED

_RESTARTS = 1_000_000  # the rendezvous decides
_TERM_GRACE = 5  # seconds between SIGTERM and SIGKILL
_OUTPUT_TIMEOUT = 2.0  # seconds that a reader of our output gets once this process is preempted
_PREEMPTED = "digrad preempted"  # key of the store: the machine whose agents were asked to save


class _StartOverError(BaseException):
    """Another machine needs this one in another round."""


class Agent(LocalElasticAgent):
    """Starts, watches and restarts the workers of this machine, round by round, until the run is over.

    Args:
        command: Of a worker, after the interpreter.
        agents: Workers.
        received: Signals that ask this process to end.
        **rendezvous: Of :class:`~digrad.torch.launch.rendezvous.Rendezvous`.
    """

    def __init__(
        self, command: Sequence[str], *, agents: int, received: list[int], **rendezvous: Any
    ) -> None:
        self._received = received
        self._patience: float | None = None  # until when the agents may save
        self._preempted = ""  # the machine for which the agents here have saved
        self._failures: list[Failure] = []
        self._machine = Rendezvous(
            check=self._check_signals, tell=self._tell, start_over=self._start_over, **rendezvous
        )
        self._logs = PrefixedLogs()
        spec = WorkerSpec(
            "agent", agents, self._machine, entrypoint=sys.executable, max_restarts=_RESTARTS, monitor_interval=0.1,
            args=tuple(word.replace("$", "$$") for word in command),  # which torchelastic expands
        )  # fmt: skip
        super().__init__(spec, self._logs, shutdown_timeout=_TERM_GRACE)

    def supervise(self) -> int:
        """Return the exit code of the run."""
        try:
            return self._supervise()
        finally:
            self._machine.shutdown()
            self._logs.close(_OUTPUT_TIMEOUT if self._received else None)

    def _supervise(self) -> int:
        while True:
            try:
                self.run()
            except _StartOverError:
                continue
            except SignalException:
                self._machine.close(f"{self._machine.place} was preempted", FAILED)
                return FAILED
            except RendezvousError as error:
                told = self._machine.outcome or Outcome(str(error), FAILED)
                self._tell(told)
                return told.code or FAILED
            if self._preempted and not self._received:
                say(f"{self._preempted} was preempted; all agents have saved")
                return FAILED
            return 0

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._check_signals()
        result = super()._monitor_workers(worker_group)  # pyright: ignore[reportCallIssue]
        if result.state == WorkerState.FAILED and self._received:
            raise SignalException("an agent cannot save", signal.SIGTERM)
        if result.state == WorkerState.FAILED:
            codes = {rank: one.exitcode for rank, one in result.failures.items()}
            self._failures = failures_of(self._logs.error_files, codes)
            self._machine.failures = [vars(replace(one, traceback="")) for one in self._failures]
        if result.state == WorkerState.SUCCEEDED and self._store is not None:
            with contextlib.suppress(DistError):  # the machine with the endpoint has gone
                if self._store.check([_PREEMPTED, SAVED]):
                    self._preempted = self._store.get(_PREEMPTED).decode()
        return result

    def _check_signals(self) -> None:
        """End the workers if this process is told to; after SIGTERM they save first if they can."""
        if not self._received:
            return
        if self._patience is None:
            is_graceful = self._received[0] == signal.SIGTERM and self._ask_to_save()
            self._patience = time.monotonic() + (SAVE_TIMEOUT if is_graceful else 0.0)
        if len(self._received) > 1 or time.monotonic() > self._patience:
            raise SignalException("preempted", signal.SIGTERM)

    def _ask_to_save(self) -> bool:
        """Ask all agents of this machine to save; return whether there are any."""
        started: Any = getattr(self._pcontext, "subprocess_handlers", {})
        running = [one.proc for one in started.values() if one.proc.poll() is None]
        for process in running:
            process.send_signal(SAVE)
        if running and self._store is not None:
            with contextlib.suppress(DistError):  # the machine with the endpoint has gone
                self._store.set(_PREEMPTED, self._machine.place)
        return bool(running)

    def _tell(self, told: Outcome) -> None:
        """Show what the agents here have left of the round that has ended, and what it is put down to."""
        self._logs.finish()
        if told.line:
            # The cause last.
            for one in sorted(self._failures, key=lambda one: one.agent == told.cause):
                if one.agent == told.cause:
                    show(one.agent, one.traceback)
                elif one.kind != LEFT:
                    show(one.agent, f"{one.reason}\n")
            say(told.line)
        self._failures = []

    def _start_over(self) -> NoReturn:
        raise _StartOverError
