"""The last step of a run that is told to end: all agents save at the same one."""

from collections.abc import Callable
from typing import Any

from digrad.torch.launch_folder import can_end, is_asked_to_end
from digrad.torch.process_network import ProcessNetwork

_SLACK = 2  # steps that pass until everybody has read what the others have said


class Ending:
    """The agreement of all agents on their last step, once launch asks for it.

    Args:
        network: The processes.
        wait: Waits until all agents have posted something under a name, where they may be any number of steps apart;
            by default they wait for all messages, so that none is further ahead than there are agents.
    """

    def __init__(self, network: ProcessNetwork, wait: Callable[[str], None] | None = None) -> None:
        self._network, self._wait = network, wait
        self._save: Callable[[], Any] | None = None
        self._name = f"ending {network.count_optimizer()}"
        self._is_posted = False
        self._last: int | None = None

    def enable(self, save: Callable[[], Any]) -> None:
        """Save with ``save`` when the run is told to end."""
        self._save = save
        can_end()

    def after_step(self, k: int) -> None:
        """Look whether launch asks for the end, and agree on the step."""
        if self._save is None or self._last is not None:
            return
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
        if self._save is not None and k == self._last:
            self._save()
            self._network.handshake.leave_together()
            raise SystemExit(0)
