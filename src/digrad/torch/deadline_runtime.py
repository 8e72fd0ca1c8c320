"""One agent in its own process that does not wait for late neighbours.

Agents may be at different steps. Where all are needed (an average, a checkpoint, the end) those who come first go on
mixing, without a step along their gradients, until the others have come: who is behind would else hear nobody.
"""

import contextlib
import itertools
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from digrad.errors import CommunicationError, NonFiniteError
from digrad.methods.fields import with_fields
from digrad.torch.between_steps import BetweenSteps
from digrad.torch.deadline_net import RECENT, DeadlineNet
from digrad.torch.log_records import note_step
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.reasons import agents_text
from digrad.torch.runtime import overwrite

OWNER = "DecentralizedOptimizer"
_LOOK = 0.05  # seconds between two looks at whether all have come, at least
_SIGN = 1.0  # seconds between two signs of life of packets under way
_TOLERANCE = 1e3  # times the rounding error of a number: sums of many of them


class DeadlineRuntime:
    """The runtime of :class:`~digrad.torch.DecentralizedOptimizer` on a network with a deadline.

    Args:
        network: The processes.
        net: The executor.
    """

    shares_memory = True

    def __init__(self, network: ProcessNetwork, net: DeadlineNet) -> None:
        self.net, self._network = net, network
        self.between_steps = BetweenSteps(network, net, self._wait_for_all)
        self._early: list[tuple[str, str]] = []
        self._last: tuple[Any, Any, torch.Tensor] | None = None  # method, state and gradient of the last step
        self._gatherings = itertools.count()
        self._tell_at_exit = weakref.finalize(
            self, _tell_seen, network.agent, net.lags
        )  # unless it is closed

    def lay_out(self, state: Any, early: Sequence[tuple[str, str]]) -> Any:
        """Return a copy of a state."""
        self._early = list(early)
        return type(state)(*(value.clone(memory_format=torch.contiguous_format) for value in state))

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step."""
        self._last = (method, state, grad.clone())
        self._step(method, state, grad)
        with self._explained():
            self.net.check_silence()

    def _step(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        with self._explained():
            self.net.begin_step()
            overwrite(state, method.step(state, grad, self.net))
            self.net.end_step()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say why nothing came from the others, if they have said it."""
        try:
            yield
        except CommunicationError as error:
            raise self._network.reason_of(error) from error

    def publish(self, k: int, state: Any, *, ahead: int = 0) -> None:
        """Begin iteration k: send what the method mixes before the gradient is known."""
        self.net.k = k
        note_step(k)
        self.net.start_early([(verb, getattr(state, name)) for verb, name in self._early], ahead=ahead)

    def _wait_for_all(self, name: str) -> None:
        """Wait until all agents have posted something."""
        while self._network.handshake.posted(name) is None:
            self.net.wait_for_packet(_LOOK)
            with self._explained():
                self.net.check_silence()

    def gather(self, call: str) -> None:
        """Wait until all agents have come to ``call`` and nothing is under way; mix with those who have not.

        Raises:
            CommunicationError: An agent does not come within the timeout after the last sign of it, or mass was lost.
        """
        name = f"gathering {next(self._gatherings)}"
        self._network.handshake.post(name, {"call": call, "k": self.net.k})
        ahead = 0
        while self._network.handshake.posted(name) is None:
            ahead += 1
            self._mix_on(ahead)
            self.net.wait_for_packet(_LOOK)
            with self._explained():
                self.net.check_silence()
        settled = f"{name} settled"
        with self._explained():
            self._settle(name, settled)
        self._check_mass(call)
        for one in (name, settled):  # all have read both
            self._network.handshake.withdraw(one)

    def _settle(self, name: str, settled: str) -> None:
        """Let nothing leave, and wait until nobody's packets are under way, however long, as long as they move.

        Args:
            name: Under which an agent says that its packets move.
            settled: Under which it says that all of them were confirmed.
        """
        handshake, timeout = self._network.handshake, self._network.timeout
        self.net.pause()
        is_settled, moved, known, since = False, 0.0, None, time.monotonic()
        while not handshake.wait_posted(settled, _SIGN if is_settled else 0.0):
            if not is_settled and self.net.is_settled(_SIGN):
                is_settled = True
                handshake.post(settled, {})
                continue
            if self.net.moved != moved:  # at either end: what has left may wait in a buffer of the system
                moved = self.net.moved
                handshake.post(name, {"moved": moved})
            now, everyone = time.monotonic(), handshake.posted(name)
            if everyone != known:
                known, since = everyone, now
            elif now - since > timeout:
                raise CommunicationError(
                    f"step {self.net.k}: the packets of {agents_text(handshake.missing(settled))} have not moved for "
                    f"{timeout:.1f} s; it, or who receives them, is dead, stopped or cut off: look at their logs, and "
                    "start all agents again."
                )

    def release(self) -> None:
        """Let packets leave again; all agents have come and have seen what they wanted to see."""
        self.net.go_on()

    def _mix_on(self, ahead: int) -> None:
        """Take a step that moves along no gradient: the estimates are averaged, and trackers passed on."""
        if self._last is None or not hasattr(self._last[0], "step_size"):
            return
        method, state, grad = self._last
        self._step(with_fields(method, {"step_size": 0.0}), state, grad)
        self.publish(self.net.k, state, ahead=ahead)

    def _check_mass(self, call: str) -> None:
        """Make sure that what is pushed is with somebody: nothing was lost or counted twice."""
        here = {"off": self.net.balance + self.net.in_transit(), "scale": self.net.scale, "k": self.net.k}
        everyone = self._network.exchange(here, f"{OWNER}.{call}()")
        off, scale = (sum(one[name] for one in everyone) for name in ("off", "scale"))
        precision = torch.finfo(self.net.dtype).eps
        if abs(off) > _TOLERANCE * precision * (1.0 + scale):
            raise CommunicationError(
                f"{OWNER}.{call}(): the trackers of all agents together are off by {off:.3g}, {scale:.3g} was pushed; "
                "this is a defect of digrad or of a message: restart the tracking."
            )
        self.net.begin_account()

    def go_to(self, k: int, links: Mapping[str, torch.Tensor]) -> None:
        """Wait for all agents, agree on the iteration, and go on with another state of the links."""
        self.gather("load_state_dict")
        self._last = None
        self._network.agree({"k": k}, OWNER)
        self.net.load_links(links)
        self.net.k = k
        self._network.agree({"k": k}, OWNER)  # nobody sends before all have forgotten what was
        self.net.go_on()

    def close(self) -> None:
        """Wait until all agents are done."""
        self.gather("close")
        here = {"lags": list(self.net.lags.items()), "held up": self.net.held_up}
        everyone = self._network.exchange(here, f"{OWNER}.close()")
        told = lag_text([dict(one["lags"]) for one in everyone], [one["held up"] for one in everyone])
        if self._network.agent == 0:
            _tell(told)
        self._tell_at_exit.detach()
        self.between_steps.close()

    def add_up(self, value: torch.Tensor, call: str) -> torch.Tensor:
        """Return the sum over all agents, in the memory of ``value``."""
        return self._network.add_up(value, f"{OWNER}.{call}()")

    def fail(self, reason: str) -> NoReturn:
        """Raise here, and on every other agent in its next step or call."""
        self._network.fail(NonFiniteError(reason))


def _tell_seen(agent: int, lags: Mapping[int, int]) -> None:
    """Say which neighbours were late, where an agent ends without having asked the others."""
    told = lag_text([lags], [0.0] * (max(lags, default=0) + 1))
    _tell(told and f"{told}, as agent {agent} has seen it")


def _tell(told: str) -> None:
    if told:
        sys.stderr.write(f"digrad: {told}\n")
        sys.stderr.flush()


def lag_text(lags: Sequence[Mapping[int, int]], held_up: Sequence[float]) -> str:
    """Return who was behind by more steps than are normal, at worst; not those who were late because others were.

    Args:
        lags: By how many steps each neighbour was behind, as each agent has seen it.
        held_up: Seconds that each agent has waited for neighbours that were too far behind.

    >>> lag_text([{1: 0, 2: 20}, {0: 20, 2: 7}, {}], [2.0, 2.0, 0.0])
    'late: agent 2 was up to 20 steps behind'
    """
    worst: dict[int, int] = {}
    for seen in lags:
        for agent, behind in seen.items():
            worst[agent] = max(worst.get(agent, 0), behind)
    late = sorted(
        (-behind, agent)
        for agent, behind in worst.items()
        if behind > RECENT and 2 * held_up[agent] <= max(held_up)
    )
    listed = ", ".join(f"agent {agent} was up to {-behind} steps behind" for behind, agent in late)
    return f"late: {listed}" if listed else ""
