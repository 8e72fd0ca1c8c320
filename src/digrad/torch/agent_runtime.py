"""One agent in its own process: messages travel ahead, and what concerns all agents is agreed on."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from digrad.errors import NonFiniteError
from digrad.torch.agent_net import AgentNet
from digrad.torch.between_steps import BetweenSteps
from digrad.torch.fated_net import FatedNet, keep_sleepers
from digrad.torch.log_records import note_step
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.runtime import overwrite

OWNER = "DecentralizedOptimizer"


class AgentRuntime:
    """The runtime of :class:`~digrad.torch.DecentralizedOptimizer`; see :class:`~digrad.torch.runtime.Runtime`.

    Args:
        network: The processes.
        net: The executor on which every message arrives.
        fated: The one that methods see where packets have fates.
    """

    shares_memory = True

    def __init__(self, network: ProcessNetwork, net: AgentNet, fated: FatedNet | None = None) -> None:
        self.net, self._plain, self._fated, self._network = fated or net, net, fated, network
        self.between_steps = BetweenSteps(network, net)
        self._early: list[tuple[str, str]] = []
        self._early_memory = torch.empty(0)

    def lay_out(self, state: Any, early: Sequence[tuple[str, str]]) -> Any:
        """Return a copy of a state in one piece: x first, then what is sent early, so that this is one message."""
        fields = state._asdict()
        self._early = sorted(early, key=lambda item: item[1] != "x")
        sent = [name for _, name in self._early]
        order = ["x", *(name for name in sent if name != "x")]
        order += [name for name in fields if name not in order]
        memory = fields["x"].new_empty(sum(fields[name].shape[1] for name in order))
        views = dict(zip(order, memory.split([fields[name].shape[1] for name in order]), strict=True))
        first = 0 if "x" in sent else fields["x"].shape[1]
        self._early_memory = memory[first:]
        kept = type(state)(**{name: views[name][None] for name in fields})
        overwrite(kept, state)
        return kept

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step, in place."""
        self.net.begin_step()
        if self._fated:
            overwrite(state, keep_sleepers(state, method.step(state, grad, self._fated), self._fated))
            self._fated.end_step()
            return
        after = method.step(state, grad, self._plain)
        self._plain.finish_early()
        overwrite(state, after)
        self.net.end_step()

    def publish(self, k: int, state: Any) -> None:
        """Begin iteration k: send what the method mixes before the gradient is known."""
        self.net.k = k
        note_step(k)
        if self._fated is None:  # a packet depends on what is owed, which the step decides
            fields = [(verb, getattr(state, name)) for verb, name in self._early]
            self._plain.start_early(fields, self._early_memory)

    def gather(self, call: str) -> None:
        """Do nothing: agents that wait for all messages are together anyway."""

    def release(self) -> None:
        """Do nothing."""

    def go_to(self, k: int, links: Mapping[str, torch.Tensor]) -> None:
        """Wait for the messages under way, agree on the iteration, and go on with another state of the links."""
        self._plain.settle_early()
        # Where packets have fates, an agent has books of the arcs that it has, which need not be those of the others.
        names = sorted({name.partition(" of ")[0] for name in links}) if self._fated is None else []
        self._network.agree({"k": k, "links": ", ".join(names)}, OWNER)
        self.net.load_links(links)
        self.net.k = k

    def close(self) -> None:
        """Finish the messages under way; every agent must call."""
        self._plain.settle_early()
        self.between_steps.close()

    def add_up(self, value: torch.Tensor, call: str) -> torch.Tensor:
        """Return the sum over all agents, in the memory of ``value``."""
        return self._network.add_up(value, f"{OWNER}.{call}()")

    def fail(self, reason: str) -> NoReturn:
        """Raise here, and on every other agent in its next step or call."""
        self._network.fail(NonFiniteError(reason))
