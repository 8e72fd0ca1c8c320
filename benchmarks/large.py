"""Large networks: CGT on a quadratic against scipy's sparse products, and how the time grows with the agents."""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from benchmarks.measure import interleave, peak_memory, resident_memory, timed, unrecorded
from benchmarks.report import BenchRow
from digrad.errors import DigradError
from digrad.graphs import Digraph, exponential, k_out, ring
from digrad.methods import CGT
from digrad.network import Network, rho
from digrad.problems import Problem, quadratic
from digrad.sampling import normal_start
from digrad.simulation import simulate
from digrad.simulation.setup import Prepared, prepare
from digrad.trace import Trace

MANY, DIM = 100_000, 100
STEPS = (
    40,
    2000,
)  # of one timed call, at least and at most: it begins and ends with copies, as those of runs do
AGENT_STEPS = 5_000_000  # steps of one timed call times agents, in between
STEP_SIZE, THRESHOLD = 0.2, 5.0
NEVER = 1 << 40  # a record_every that no run reaches
AGREEMENT, CHECKED = 1e-10, 10  # of x after so many steps, when agents still clip
RANDOM, EXPONENTIAL = "random 3-out digraph", "exponential graph"
GRAPHS: dict[str, Callable[[int], Digraph]] = {
    RANDOM: lambda n: k_out(n, min(3, n - 1), seed=0),
    EXPONENTIAL: exponential,
}
CURVE = (10, 100, 1000, 10_000, 100_000, 1_000_000)  # agents of the figure, in dimension CURVE_DIM
CURVE_DIM = 10
LONG = 1000  # iterations of a run that converges
STREAM_NUMBERS = 1 << 25  # of the arrays whose copy gives the bandwidth of memory: beyond every cache


@dataclass(frozen=True, eq=False)
class LargeWorkload:
    """Steps of CGT on a random quadratic, as digrad runs them and as scipy does."""

    graph: str
    n: int
    d: int
    dtype: str = "float32"
    length: int | None = None  # steps of one call, if not by the number of agents

    @cached_property
    def network(self) -> Network:
        """Of the graph, with uniform weights."""
        return Network(GRAPHS[self.graph](self.n))

    @cached_property
    def problem(self) -> Problem:
        """Curvatures from 1 to 2, and minima that differ."""
        return random_quadratic(self.n, self.d)

    @cached_property
    def matrices(self) -> tuple[Any, Any]:
        """R and C as scipy's CSR."""
        return tuple(mixing.matrix.astype(self.dtype) for mixing in (self.network.R, self.network.C))  # pyright: ignore[reportReturnType]

    @cached_property
    def x0(self) -> npt.NDArray[np.floating]:
        """A standard normal start."""
        return normal_start(self.n, self.d, 0).astype(self.dtype)

    @cached_property
    def prepared(self) -> Prepared:
        """The run, ready to advance."""
        method = CGT(step_size=STEP_SIZE, threshold=THRESHOLD)
        return prepare(method, self.problem, self.network, self.x0, name="CGT", length=self.steps)

    @property
    def steps(self) -> int:
        """Of one timed call."""
        return self.length or int(np.clip(AGENT_STEPS // self.n, *STEPS))

    def run(self) -> Any:
        """Run the compiled loop; return the state."""
        start = unrecorded(self.prepared.start)
        return self.prepared.call(start, 1 + self.steps, record_every=NEVER)[0].state

    def products(self) -> None:
        """Multiply by R and by C, as often as the run does."""
        R, C = self.matrices
        for _ in range(self.steps):
            _, _ = R @ self.x0, C @ self.x0

    def run_scipy(self) -> npt.NDArray[np.floating]:
        """Run the same steps with NumPy and scipy; return x."""
        R, C = self.matrices
        a, b = (np.asarray(array) for array in self.problem.arrays(self.dtype)[:2])
        x, y, g = self.x0, np.zeros_like(self.x0), np.zeros_like(self.x0)
        for _ in range(self.steps):
            grad = a * x - b
            y = C @ y
            y += grad
            y -= g
            norm = np.sqrt(np.einsum("nd,nd->n", y, y))
            x = R @ x
            x -= (STEP_SIZE / np.maximum(norm / THRESHOLD, 1)).astype(x.dtype)[:, None] * y
            g = grad
        return x

    def floor(self, bandwidth: float) -> float:
        """Return the seconds in which memory delivers what a step must touch once.

        That is to read x, y and both coefficients, to write x and y, and to read sender and two weights of every arc,
        unless all agents listen alike. What stays in a cache comes faster.
        """
        arcs = 0 if self.graph == EXPONENTIAL else self.n + self.network.union.n_arcs
        return (6 * self.n * self.d + 3 * arcs) * np.dtype(self.dtype).itemsize / bandwidth


def random_quadratic(n: int, d: int) -> Problem:
    """Return n quadratics in dimension d, with curvatures from 1 to 2."""
    generator = np.random.default_rng(0)
    return quadratic(curvature=generator.uniform(1, 2, (n, d)), linear=generator.standard_normal((n, d)))


def large(data: str, repeats: int) -> list[BenchRow]:
    """Time one iteration of 100 000 agents against the two products that it contains, by scipy."""
    with jax.enable_x64(True):
        _check_agreement()
        return [
            _against_products(graph, target, repeats) for graph, target in ((RANDOM, 0.9), (EXPONENTIAL, 0.7))
        ]


def two_threads(data: str, repeats: int) -> list[BenchRow]:
    """Time one iteration of 100 000 agents on one core and on two, by the wall clock."""
    with jax.enable_x64(True):
        work = LargeWorkload(RANDOM, MANY, DIM)
        work.run()
        cores = sorted(os.sched_getaffinity(0))[-2:]

        def on(some: list[int]) -> None:
            with _affinity(set(some)):
                work.run()

        times = interleave({"two": lambda: on(cores), "one": lambda: on(cores[-1:])}, repeats=repeats)
    return [
        BenchRow(
            name=f"iteration, {MANY} agents, {len(cores)} cores",
            ours=times["two"].wall * 1e3 / work.steps,
            reference=times["one"].wall * 1e3 / work.steps,
            unit="ms",
            target=1.4,
            at_least=True,
            note="wall-clock time; reference: all threads on one core",
        )
    ]


def growth(data: str, repeats: int) -> list[BenchRow]:
    """Time one iteration of 10 to a million agents: the points of the figure, and the time per arc."""
    rows = []
    with jax.enable_x64(True):
        bandwidth = stream_bandwidth(repeats)
        for graph, target in ((RANDOM, 3.0), (EXPONENTIAL, 1.5)):
            per_arc = {}
            for n in CURVE:
                work = LargeWorkload(graph, n, CURVE_DIM)
                times = interleave({"digrad": work.run, "scipy": work.run_scipy}, repeats=repeats)
                rows.append(
                    BenchRow(
                        name=f"{graph}, {n} agents, dimension {CURVE_DIM}",
                        ours=times["digrad"].cpu * 1e6 / work.steps,
                        reference=times["scipy"].cpu * 1e6 / work.steps,
                        unit="us",
                        at_least=True,
                        floor=work.floor(bandwidth) * 1e6,
                        n=n,
                        note="reference: NumPy and scipy CSR; floor: what must move, at the speed of a large copy",
                    )
                )
                per_arc[n] = times["digrad"].cpu / work.steps / (n + work.network.union.n_arcs)
            rows.append(
                BenchRow(
                    name=f"time per arc, {graph}, {CURVE[-1]} agents against {CURVE[-3]}",
                    ours=per_arc[CURVE[-1]] * 1e9,
                    reference=per_arc[CURVE[-3]] * 1e9,
                    unit="ns",
                    target=target,
                )
            )
    return rows


def networks(data: str, repeats: int) -> list[BenchRow]:
    """Time building and validating large networks, Perron vectors included, and the spectral gap of a long ring."""
    rows = []
    for n, target in ((MANY, 3.0), (CURVE[-1], 30.0)):
        seconds = _seconds(lambda n=n: _built(k_out(n, 3, seed=0)), repeats)
        rows.append(BenchRow(name=f"network of {n} agents, {RANDOM}", ours=seconds, unit="s", target=target))
    gaps = []
    seconds = _seconds(lambda: gaps.append(1 - rho(_built(ring(MANY)).R)), repeats)
    note = f"spectral gap {gaps[0]:.3g}, by a Fourier transform of the circulant weights"
    rows.append(
        BenchRow(name=f"network of {MANY} agents, ring", ours=seconds, unit="s", target=10.0, note=note)
    )
    return rows


def converging(data: str, repeats: int) -> list[BenchRow]:
    """Run many iterations of 100 000 agents, which must converge: a point of the figure, too."""
    trace = _simulated(MANY, CURVE_DIM, steps=LONG)
    if trace.verdict != "converged":
        raise DigradError(
            f"{LONG} iterations of {MANY} agents must converge, but ended as {trace.verdict!r}."
        )
    name = f"{RANDOM}, {MANY} agents, dimension {CURVE_DIM}, whole run of {LONG} iterations"
    return [BenchRow(name=name, ours=trace.seconds * 1e6 / LONG, unit="us", n=MANY, note=str(trace))]


def large_memory(data: str, repeats: int) -> list[BenchRow]:
    """Measure what a run of 100 000 agents adds to the memory of this fresh process, once JAX is warm."""
    _simulated(MANY // 20, DIM, steps=20)
    before = resident_memory()
    _simulated(MANY, DIM, steps=20)
    array = 4 * MANY * DIM
    return [
        BenchRow(
            name=f"peak memory, {MANY} agents, dimension {DIM}",
            ours=(peak_memory() - before) / 1e6,
            reference=(4 * 3 * array + 6 * array) / 1e6,  # coefficients: two in float64, and two in float32
            unit="MB",
            target=1.0,
            note="reference: 4 times the state (x, y and g) plus the problem, as given and as used",
        )
    ]


def _simulated(n: int, d: int, *, steps: int) -> Trace:
    method, network = CGT(step_size=STEP_SIZE, threshold=THRESHOLD), Network(GRAPHS[RANDOM](n))
    return simulate(
        method, random_quadratic(n, d), network,
        steps=steps, record_every=100, dtype="float32", x0="normal",
    )  # fmt: skip


def stream_bandwidth(repeats: int) -> float:
    """Return how many bytes per second a copy of a large array reads and writes on this machine."""
    source, target = np.ones(STREAM_NUMBERS, np.float32), np.ones(STREAM_NUMBERS, np.float32)
    timing = interleave({"copy": lambda: np.copyto(target, source)}, repeats=repeats)["copy"]
    return 2 * source.nbytes / timing.cpu


def _against_products(graph: str, target: float, repeats: int) -> BenchRow:
    work = LargeWorkload(graph, MANY, DIM)
    times = interleave({"digrad": work.run, "products": work.products}, repeats=repeats)
    return BenchRow(
        name=f"iteration, {MANY} agents, {graph}",
        ours=times["digrad"].cpu * 1e3 / work.steps,
        reference=times["products"].cpu * 1e3 / work.steps,
        unit="ms",
        target=target,
        ours_wall=times["digrad"].wall * 1e3 / work.steps,
        reference_wall=times["products"].wall * 1e3 / work.steps,
        floor=work.floor(stream_bandwidth(repeats)) * 1e3,
        note=f"dimension {DIM}, float32; reference: R @ x and C @ y alone, by scipy",
    )


def _check_agreement() -> None:
    for graph in GRAPHS:
        work = LargeWorkload(graph, 5000, DIM, "float64", length=CHECKED)
        gap = float(np.abs(np.asarray(work.run().x) - work.run_scipy()).max())
        if not gap <= AGREEMENT:
            raise DigradError(
                f"scipy's loop and digrad differ by {gap:.3g} on the {graph}, which must be at most {AGREEMENT:g}; "
                "the benchmark is void, please report it."
            )


def _built(graph: Digraph) -> Network:
    network = Network(graph)
    network.require(frozenset({"row", "column"}), "CGT")
    _, _ = network.u, network.v
    return network


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    """Return the median CPU time of at most three calls: some take many seconds."""
    return statistics.median(timed(run).cpu for _ in range(min(repeats, 3)))


@contextmanager
def _affinity(cores: set[int]) -> Iterator[None]:
    """Hold all threads of this process on some cores."""
    before = os.sched_getaffinity(0)
    _hold_threads(cores)
    try:
        yield
    finally:
        _hold_threads(before)


def _hold_threads(cores: set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # those of the last call are just ending
            os.sched_setaffinity(int(task.name), cores)
