"""Preemption: after SIGTERM to ``digrad launch`` all agents save at the same step, and end.

Launch sends its agents another signal, which ends those that cannot save; agents of other machines learn it through the
store. A loop may look at ``optimizer.preempted`` at the end of its body, save and leave. For one that does not, the
next ``step()`` saves and ends: by then the whole body has run, with its schedulers in whatever order, and nothing has
moved.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from digrad.torch.launch import STORE_VARIABLE
from digrad.torch.launch.rendezvous_store import note_preempted
from digrad.torch.launch.worker import is_elastic

if TYPE_CHECKING:
    from digrad.torch.process_network import ProcessNetwork

SAVE_TIMEOUT = (
    25.0  # seconds that agents get to save and end; what preempts launch often kills it after thirty
)
SAVE = signal.SIGUSR2  # what asks an agent to save: SIGTERM is for those that shall end at once
_SLACK = 2  # steps that pass until everybody has read what the others have said

asked = threading.Event()  # whether this process has been


class Saver(Protocol):
    """Object that saves a run that is preempted."""

    def note_end_of_step(self) -> None:
        """Remember what the next batch changes although no step is taken with it."""
        ...

    def save_noted(self) -> Any:
        """Save the state with what was remembered; all agents call."""
        ...


class Preemption:
    """The agreement of all agents on their last step, once launch asks for it.

    Args:
        network: The processes.
        wait: Waits until all agents have posted something under a name, where they may be any number of steps apart;
            by default they wait for all messages, so that none is more exchanges ahead than there are agents.
    """

    def __init__(self, network: "ProcessNetwork", wait: Callable[[str], None] | None = None) -> None:
        self._network, self._wait = network, wait
        self._saver: Saver | None = None
        self._name = f"preemption {network.count_optimizer()}"
        self._is_enabled = self._is_posted = self.is_over = False
        self._is_asked_elsewhere = False
        self._last: int | None = None

    def enable(self, saver: Saver | None = None) -> None:
        """End when the run is preempted: with what saves it, or else because the loop looks whether it is over."""
        self._saver = saver or self._saver
        if self._is_enabled:
            return
        self._is_enabled = True
        if is_elastic() and threading.current_thread() is threading.main_thread():
            signal.signal(SAVE, lambda *_: asked.set())
        if STORE_VARIABLE in os.environ:
            self._network.watchers.append(self._look)

    def _look(self) -> None:
        """Look whether an agent of another machine was asked; a thread calls, because that takes a moment."""
        self._is_asked_elsewhere = self._network.coordination.is_flagged(self._name)

    @property
    def is_undecided(self) -> bool:
        """Return whether launch asks for the end, here or elsewhere, and the last step is not known yet."""
        is_asked = asked.is_set() or self._is_asked_elsewhere
        return self._is_enabled and is_asked and self._last is None

    def post(self, k: int) -> None:
        """Tell the others, once, at which step this agent can end at the earliest, if launch asks for the end."""
        if self._is_posted or not self.is_undecided:
            return
        self._is_posted = True
        self._network.coordination.flag(self._name)
        self._network.coordination.post(self._name, {"k": k})

    def after_step(self, k: int) -> None:
        """Look whether launch asks for the end, agree on the step, and find out whether this was it."""
        if self._is_enabled and self._last is None:
            self._agree(k)
        if k == self._last:
            self.is_over = True
            note_preempted()
            if self._saver is not None:
                self._saver.note_end_of_step()

    def _agree(self, k: int) -> None:
        self.post(k)
        if not self._is_posted:
            return
        if self._wait is not None:
            self._wait(self._name)
        everyone = self._network.coordination.posted(self._name)
        if everyone is not None:
            # Between two exchanges, a period apart at most, agents run freely.
            apart = self._network.n * (self._network.network.period or 1)
            slack = apart + _SLACK if self._wait is None else 0
            self._last = max(one["k"] for one in everyone) + slack

    def before_step(self, k: int) -> None:
        """Save and end this process if the step before was the last one; all agents do it at the same step."""
        if self._saver is not None and self.is_over and k == self._last:
            self._saver.save_noted()
            self._network.coordination.leave_together()
            raise SystemExit(0)
