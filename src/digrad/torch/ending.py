"""The last step of a run that is told to end: all agents save at the same one.

A loop may look at ``optimizer.preempted`` at the end of its body, save and leave. For one that does not, the next
``step()`` saves and ends: by then the whole body has run, with its schedulers in whatever order, and nothing has moved.
"""

from collections.abc import Callable
from typing import Any, Protocol

from digrad.torch.launch_folder import can_end, is_asked_to_end
from digrad.torch.process_network import ProcessNetwork

_SLACK = 2  # steps that pass until everybody has read what the others have said


class Saver(Protocol):
    """What saves a run that is told to end."""

    def note_end_of_step(self) -> None:
        """Remember what the next batch changes although no step is taken with it."""
        ...

    def save_noted(self) -> Any:
        """Save the state with what was remembered; all agents call."""
        ...


class Ending:
    """The agreement of all agents on their last step, once launch asks for it.

    Args:
        network: The processes.
        wait: Waits until all agents have posted something under a name, where they may be any number of steps apart;
            by default they wait for all messages, so that none is further ahead than there are agents.
    """

    def __init__(self, network: ProcessNetwork, wait: Callable[[str], None] | None = None) -> None:
        self._network, self._wait = network, wait
        self._saver: Saver | None = None
        self._name = f"ending {network.count_optimizer()}"
        self._can_end = self._is_posted = self.is_over = False
        self._last: int | None = None

    def enable(self, saver: Saver | None = None) -> None:
        """End when the run is told to: with what saves it, or else because the loop looks whether it is over."""
        self._saver = saver or self._saver
        if not self._can_end:
            self._can_end = True
            can_end()

    def after_step(self, k: int) -> None:
        """Look whether launch asks for the end, agree on the step, and find out whether this was it."""
        if self._can_end and self._last is None:
            self._agree(k)
        if k == self._last:
            self.is_over = True
            if self._saver is not None:
                self._saver.note_end_of_step()

    def _agree(self, k: int) -> None:
        if not self._is_posted:
            if not is_asked_to_end():
                return
            self._network.handshake.post(self._name, {"k": k})
            self._is_posted = True
            if self._wait is not None:
                self._wait(self._name)
        everyone = self._network.handshake.posted(self._name)
        if everyone is not None:
            slack = self._network.n + _SLACK if self._wait is None else 0
            self._last = max(one["k"] for one in everyone) + slack

    def before_step(self, k: int) -> None:
        """Save and end this process if the step before was the last one; all agents do it at the same step."""
        if self._saver is not None and self.is_over and k == self._last:
            self._saver.save_noted()
            self._network.handshake.leave_together()
            raise SystemExit(0)
