"""Report of the agents that were late, in one line at the end of a run with a deadline."""

from collections.abc import Mapping, Sequence

from digrad.torch.engines.undelivered import RECENT
from digrad.torch.launch.failures import say


def tell_seen(agent: int, lags: Mapping[int, int]) -> None:
    """Say which neighbours were late, where an agent ends without having asked the others."""
    told = lag_text([lags], [0.0] * (max(lags, default=0) + 1))
    if told:
        say(f"{told}, as agent {agent} has seen it")


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
