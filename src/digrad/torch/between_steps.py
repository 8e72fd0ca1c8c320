"""What an agent in its own process does between two steps: look after the others, measure, and end when told to."""

import time
from collections.abc import Callable

from digrad.torch.launch.preemption import Preemption, Saver
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.step_metrics import Counted, StepMetrics


class BetweenSteps:
    """One agent between its steps.

    Args:
        network: The processes.
        net: The executor.
        wait: See :class:`~digrad.torch.launch.preemption.Preemption`.
    """

    def __init__(
        self, network: ProcessNetwork, net: Counted, wait: Callable[[str], None] | None = None
    ) -> None:
        self._network = network
        self._metrics = StepMetrics(network.agent, net)
        self._preemption = Preemption(network, wait)
        self._last_end: float | None = None

    def end_step(self, k: int) -> None:
        """Note how long a step takes and what it has cost."""
        began, self._last_end = self._last_end, time.monotonic()
        if began is not None:
            self._network.note_step(self._last_end - began)
        self._metrics.write(k)
        self._preemption.after_step(k)

    def begin_step(self, k: int) -> None:
        """Save and end here if all agents have agreed to."""
        self._preemption.before_step(k)

    def end_when_told_to(self, saver: Saver | None = None) -> None:
        """Remember what saves, or that the loop itself looks whether the run is over."""
        self._preemption.enable(saver)

    @property
    def is_over(self) -> bool:
        """Whether the run was told to end, and the last step was that of all agents."""
        return self._preemption.is_over

    def close(self) -> None:
        """Write no more metrics."""
        self._metrics.close()
