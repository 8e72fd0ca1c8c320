"""A run is the same run however it is asked for: in parts, recorded less often, as one of many, resumed.

Hypothesis draws what is run (method, schedule, links, network in time, samples, dtype, churn) and how
it is asked for. Compiling is what costs, so each draw is compared in every way that applies to it, and the gate draws
from few methods; `make slow` draws from all.
"""

import dataclasses
import signal
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st

import bits
import digrad as dg
from digrad.errors import DigradError
from digrad.links import Crash, Join, Leave
from digrad.simulation import simulator
from method_cases import CASES
from property_settings import EXPLORES, examples

pytestmark = pytest.mark.long

GATE = ("CGT", "AB", "SGP", "GTNSGDm", "Adam")
METHODS = {case.label: case.method for case in CASES if EXPLORES or case.label in GATE}
MOST_STEPS = 30
GROWS = 60.0  # times the usual step size: a linear method diverges
ROUNDING = {
    "float64": 1e-7,
    "float32": 1e-2,
}  # of products that add up in another order, after MOST_STEPS steps

FIXED, CHANGING = bits.EXAMPLE, {
    "split": dg.graphs.split(bits.EXAMPLE, 3),
    "random": dg.graphs.random_edges(bits.EXAMPLE, 0.6, seed=3),
}  # fmt: skip
CHURN = ([Leave(1, at=5), Join(1, at=14)], [Crash(2, at=9)], [Crash(3, at=4, repair="restart")])


class Killed(BaseException):
    """Exception that ends a process at once."""


@dataclass(frozen=True)
class Setting:
    """Arguments that determine the numbers of a run."""

    method: Any
    problem: Any
    network: Any
    seed: int
    x0: Any
    options: dict[str, Any] = field(default_factory=dict)  # dtype, record, batch_size, sampling

    @property
    def rounding(self) -> float:
        return ROUNDING[self.options["dtype"]]

    def run(self, steps: int, **how: Any) -> dg.Trace:
        given = {"seed": self.seed, "x0": self.x0, **self.options, **how}
        return dg.simulate(self.method, self.problem, self.network, steps=steps, **given)


@st.composite
def settings_of_runs(draw: Any) -> Setting:
    label = draw(st.sampled_from(sorted(METHODS)))
    method = METHODS[label]
    step_size = draw(st.sampled_from(("as is", "as is", "large", "scheduled")))
    if step_size == "large":
        method = dataclasses.replace(method, step_size=GROWS * method.step_size)
    elif step_size == "scheduled":
        method = dataclasses.replace(method, step_size=dg.schedules.Inverse(10 * method.step_size, 9))
    options: dict[str, Any] = {"dtype": draw(st.sampled_from(("float64", "float64", "float32")))}
    options["record"] = dg.Record(average=draw(st.sampled_from(("plain", "weighted"))))
    has_samples = draw(st.booleans())
    problem = (bits.LOGISTIC if has_samples else bits.QUADRATIC)[0]
    if has_samples and draw(st.booleans()):
        options |= {"batch_size": 2, "sampling": draw(st.sampled_from(("replacement", "epoch")))}
    links = draw(st.sampled_from((*bits.LINKS.values(), None, None)))
    kind = draw(st.sampled_from(("fixed", "fixed", "split", "random", "networks", "churn")))
    if kind == "networks":
        network: Any = dg.Network([dg.Network(FIXED), dg.Network(bits.COMPLETE)], links=links)
    elif kind == "churn":
        churn, links = draw(st.sampled_from(CHURN)), links or dg.Links(loss=0.2)
        links = dataclasses.replace(links, churn=churn) if isinstance(links, dg.Links) else links
        network = dg.Network(bits.COMPLETE, links=links)
    else:
        network = dg.Network(CHANGING.get(kind, FIXED), links=links)
    start = np.linspace(-3.0, 3.0, problem.n_agents * problem.dim).reshape(problem.n_agents, -1)
    x0 = draw(st.sampled_from(("normal", "zeros", "an array")))
    seed = draw(st.integers(0, 5))
    return Setting(method, problem, network, seed, start if x0 == "an array" else x0, options)


@dataclass(frozen=True)
class Way:
    """Way to ask for a run; nothing here may change its numbers."""

    steps: int
    record_every: int
    cut: int
    end: str  # what ends the run at the cut
    every: int  # steps between two checkpoints, before the cut
    every_after: int
    chunk: int


WAYS = st.builds(
    Way,
    steps=st.integers(12, MOST_STEPS),
    record_every=st.integers(2, 12),
    cut=st.integers(1, 12),
    end=st.sampled_from(("fewer steps", "Ctrl-C", "kill")),
    every=st.integers(1, 9),
    every_after=st.integers(1, 40),
    chunk=st.sampled_from((1000, 1000, 7) if EXPLORES else (1000,)),  # another length is compiled anew
)


@pytest.fixture(scope="module", autouse=True)
def terminal() -> Iterator[None]:
    """Ctrl-C raises, as in a terminal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@examples(gate=2, explored=60)
@given(setting=settings_of_runs(), way=WAYS)
def test_a_run_has_the_same_numbers_however_it_is_asked_for(setting: Setting, way: Way) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(is biased|drain)")
        try:
            plain = setting.run(way.steps)
        except DigradError as refusal:
            note(str(refusal))
            assume(False)
            return
        recorded_less_often(setting, way, plain)
        ended_and_resumed(setting, way, plain)
        stopped_at_a_tolerance(setting, way, plain)
        one_of_several_seeds(setting, way, plain)
        one_of_a_sweep(setting, way)


def recorded_less_often(setting: Setting, way: Way, plain: dg.Trace) -> None:
    with patch.object(simulator, "STEPS_PER_CALL", way.chunk):
        sparse = setting.run(way.steps, record_every=way.record_every)
    assert sparse.k.tolist() == sorted({*range(0, plain.steps + 1, way.record_every), plain.steps})
    same_end(sparse, plain)
    same_rows(sparse, plain, rounding=setting.rounding, but_exactly=("consensus_error", "bytes_sent"))


def ended_and_resumed(setting: Setting, way: Way, plain: dg.Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        first = until_the_cut(setting, way, dg.Checkpoint(path, every=way.every))
        if first is not None:
            same_rows(first, plain, but_last=callable(setting.method.step_size))
        again = dg.Checkpoint(path, every=way.every_after, resume=True)
        for resumed in (setting.run(way.steps, checkpoint=again), setting.run(way.steps, checkpoint=again)):
            same_end(resumed, plain)
            same_rows(resumed, plain)


def until_the_cut(setting: Setting, way: Way, checkpoint: dg.Checkpoint) -> dg.Trace | None:
    """Run until something ends it; return what it had by then, unless that was lost."""

    def end(progress: Any) -> None:
        if progress.k < way.cut:
            return
        if way.end == "kill":
            raise Killed
        signal.raise_signal(signal.SIGINT)

    if way.end == "fewer steps":
        return setting.run(way.cut, checkpoint=checkpoint)
    try:
        return setting.run(way.steps, checkpoint=checkpoint, callback=end)
    except Killed:
        return None


def stopped_at_a_tolerance(setting: Setting, way: Way, plain: dg.Trace) -> None:
    level = np.maximum(plain.grad_norm, plain.consensus_error)[min(way.cut, plain.steps)]
    if not np.isfinite(level) or level <= 0:
        return
    stopped = setting.run(way.steps, tolerance=level, stop_at_tolerance=True)
    assert stopped.k.tolist() == list(range(stopped.steps + 1))
    same_rows(stopped, plain)
    if stopped.stopped_early:
        assert stopped.verdict == "converged"
        assert max(stopped.grad_norm[-1], stopped.consensus_error[-1]) <= level


def one_of_several_seeds(setting: Setting, way: Way, plain: dg.Trace) -> None:
    found = dg.compare(
        {"first": setting.method, "again": setting.method}, setting.problem, setting.network, steps=way.steps,
        seed=setting.seed - (setting.seed > 0), seeds=2, x0=setting.x0, **setting.options,
    )  # fmt: skip
    for several in found.values():
        member = several.traces[int(setting.seed > 0)]
        assert several.seeds[int(setting.seed > 0)] == setting.seed
        same_end(member, plain, rounding=setting.rounding)
        same_rows(member, plain, rounding=setting.rounding)


def one_of_a_sweep(setting: Setting, way: Way) -> None:
    options = dict(setting.options)
    if "batch_size" in options and isinstance(setting.x0, str):
        options["common_random_numbers"] = True  # else start and samples have seeds of their own
    sizes: list[Any] = [setting.method.step_size, 0.03]
    if callable(sizes[0]):
        sizes = [sizes[0], dg.schedules.Inverse(0.3, 9)]
    table = dg.sweep(
        setting.method, setting.problem, setting.network, steps=way.steps, grid={"step_size": sizes}, seeds=2,
        seed=setting.seed, x0=setting.x0, record_every=way.record_every, **options,
    ).table  # fmt: skip
    rows = iter(table.to_dict("records"))
    for size in sizes:
        for _ in range(2):
            row = next(rows)
            one = dataclasses.replace(setting, method=dataclasses.replace(setting.method, step_size=size))
            alone = one.run(
                way.steps, seed=row.get("sample_seed", row["seed"]), record_every=way.record_every
            )
            same_row(row, alone, setting.rounding)


def same_row(row: dict[str, Any], alone: dg.Trace, rounding: float) -> None:
    assert (row["verdict"], row["steps"], row["bytes_sent"]) == (
        alone.verdict, alone.steps, alone.bytes_sent[-1],
    )  # fmt: skip
    for name in ("loss", "grad_norm", "consensus_error"):
        close(row[f"final_{name}"], alone.columns[name][-1], rounding, f"final {name} of a sweep")
    close(row["initial_loss"], alone.loss[0], rounding, "initial loss of a sweep")


def same_end(found: dg.Trace, plain: dg.Trace, rounding: float = 0.0) -> None:
    """Assert that two runs ended alike, to rounding or bit for bit."""
    assert (found.verdict, found.steps, found.diverged_at) == (plain.verdict, plain.steps, plain.diverged_at)
    close(found.final_x, plain.final_x, rounding, "final_x")


def same_rows(
    found: dg.Trace,
    plain: dg.Trace,
    rounding: float = 0.0,
    but_exactly: tuple[str, ...] = (),
    but_last: bool = False,
) -> None:
    """Assert that the rows of ``found`` are those of ``plain`` at the same iterations.

    What a schedule decides is measured with its last value after the last step, so that row may differ.
    """
    assert found.columns.keys() == plain.columns.keys()
    ks = found.k[: -1 if but_last else None]
    at = np.searchsorted(plain.k, ks)
    for name, column in found.columns.items():
        close(column[: len(ks)], plain.columns[name][at], 0.0 if name in but_exactly else rounding, name)


def close(found: Any, expected: Any, rounding: float, what: str) -> None:
    """Assert that numbers agree relative to the largest of them, or bit for bit."""
    one, other = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if not rounding:
        np.testing.assert_array_equal(one, other, err_msg=what)
        return
    size = np.max(abs(other), where=np.isfinite(other), initial=1.0)
    np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding * min(size, 1e3), err_msg=what)
