"""What it costs when packets have fates: steps of CGT against the same on a network where all arrive."""

from collections.abc import Callable
from typing import Any

import jax

from benchmarks.large import NEVER, RANDOM, random_quadratic
from benchmarks.measure import interleave
from benchmarks.report import BenchRow
from digrad.graphs import k_out
from digrad.links import Links
from digrad.methods import CGT
from digrad.network import Network
from digrad.sampling import normal_start
from digrad.simulation.setup import prepare

AGENTS, DIM, STEPS = 1000, 64, 100
LOSS, MOST = 0.3, 2.5
CASES = {  # what happens to packets, and what it may cost
    f"{LOSS:.0%} loss": (Links(loss=LOSS), MOST),
    "delays of 0 to 5": (Links(delay=5), None),
    "agents awake at 80 % of the steps": (Links(awake=0.8), None),
}


def lossy(data: str, repeats: int) -> list[BenchRow]:
    """Time a step on networks that misbehave, fates drawn on the host included."""
    with jax.enable_x64(True):
        runs = {"perfect": stepping(None), **{name: stepping(links) for name, (links, _) in CASES.items()}}
        times = interleave(runs, repeats=repeats)
    scale, perfect = 1e6 / STEPS, times["perfect"]
    return [
        BenchRow(
            name=f"step, {AGENTS} agents, dimension {DIM}, {name}",
            ours=times[name].cpu * scale,
            reference=perfect.cpu * scale,
            unit="us",
            target=target,
            ours_wall=times[name].wall * scale,
            reference_wall=perfect.wall * scale,
            note=f"{RANDOM}; reference: the same where all packets arrive",
        )
        for name, (_, target) in CASES.items()
    ]


def stepping(links: Links | None) -> Callable[[], Any]:
    """Return what runs :data:`STEPS` steps, compiled beforehand."""
    network = Network(k_out(AGENTS, 3, seed=0), links=links)
    x0 = normal_start(AGENTS, DIM, 0).astype("float32")
    method = CGT(step_size=0.2, threshold=5.0)
    run = prepare(method, random_quadratic(AGENTS, DIM), network, x0, name="CGT", length=STEPS)
    return lambda: run.call(run.start, STEPS, record_every=NEVER)
