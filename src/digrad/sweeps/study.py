"""A study: what all runs of a sweep or a search share, the batches in which they advance, and the rows they leave."""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from digrad import checks
from digrad._internal.fingerprints import fingerprint
from digrad.core.hyperparameters import describe, is_short, numeric_fields, plain
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.simulation.batched_runs import can_be_batched
from digrad.simulation.record import FLOATS
from digrad.simulation.run_options import check_parts, check_setting, complete, make_sampler, make_start
from digrad.simulation.simulate import drive, drive_batch
from digrad.simulation.simulator import Simulator
from digrad.sweeps.largest_stable import remains
from digrad.sweeps.space import Configuration
from digrad.trace import Trace
from digrad.trace.trace import HEADLINE

MOST_RUNS = 64  # of one batch: beyond, products gain nothing and a kill loses more
BATCH_BYTES = 1 << 30  # what the states of all runs of a batch together take at most, about
STATES = 10  # arrays [n, d] that a run holds, about


@dataclass(frozen=True, eq=False)
class Study:
    """Settings that all runs of a sweep have in common.

    Args:
        problem: The losses.
        networks: By label.
        starts: By label.
        options: Options of every run, complete; see :class:`digrad.RunOptions`.
        held_out: Losses on samples that no agent trains on.
        target: The levels that ``iterations_to_target`` is about, by column.
        share_samples: Whether runs of one seed use the same samples.
        asks_settling: Whether rows tell what :func:`~digrad.sweeps.largest_stable.is_stable` needs: the loss at the
            estimate that is farthest from the average, the held-out loss at the start, and what remains at the end.
    """

    problem: Problem
    networks: Mapping[str, Network]
    starts: Mapping[str, Any]
    options: Mapping[str, Any]
    held_out: Problem | None
    target: Mapping[str, float]
    share_samples: bool
    asks_settling: bool = False
    # The simulator of the first run of each shape; on a network that draws, of the last seed.
    simulators: dict[Any, Simulator] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a process makes for itself."""
        return {**self.__dict__, "simulators": {}}

    @property
    def is_batched(self) -> bool:
        """Return whether runs may advance together: where their products become one."""
        is_common = self.options["batch_size"] is None or self.share_samples
        return is_common and all(can_be_batched(one, self.options) for one in self.networks.values())

    def shape(self, one: Configuration) -> Any:
        """Return what runs must have in common to advance together: code, network, and samples if these are shared."""
        is_sampled = self.options["batch_size"] is not None and self.share_samples
        is_drawn = is_sampled or self.networks[one.network].is_random
        return *form(one.method), one.network, one.sample_seed if is_drawn else None

    def facts(self) -> dict[str, Any]:
        """Return what determines all rows, as JSON can hold it.

        Raises:
            ArgumentError: A loss cannot be recognised in another process.
        """
        return {
            "problem": self.problem.name,
            "problem_hash": self.problem.content_hash,
            "networks": {label: network.content_hash for label, network in self.networks.items()},
            "starts": {label: _start_name(start) for label, start in self.starts.items()},
            "held_out_hash": None if self.held_out is None else self.held_out.content_hash,
            **self.settings(),
        }

    def settings(self) -> dict[str, Any]:
        """Return the part of the facts that every study has, whatever its losses are."""
        options = {name: value for name, value in self.options.items() if name not in ("seed", "x0")}
        options |= {"dtype": str(options["dtype"]), "record": dataclasses.asdict(options["record"])}
        options |= {name: plain(options[name]) for name in ("gradient_noise", "sampling")}
        return {
            "options": options,
            "target": dict(self.target),
            "common_random_numbers": self.share_samples,
        }


class Batch(NamedTuple):
    """Runs that one call of :func:`run_batch` takes.

    Args:
        runs: The runs, of one shape if they advance together.
        width: How many runs the compiled code is for; missing ones are repeated and forgotten.
    """

    runs: list[Configuration]
    width: int


def form(method: Any) -> tuple[Any, ...]:
    """Return all of a method but its numbers: its class, which numbers are columns or schedules, and its words."""
    numeric = numeric_fields(type(method))
    kinds = tuple((name, _kind(getattr(method, name))) for name in numeric)
    static = tuple(
        (field.name, getattr(method, field.name))
        for field in dataclasses.fields(method)
        if field.name not in numeric
    )
    return type(method), kinds, static


def make_study(
    problem: Problem,
    network: Network | Mapping[str, Network],
    options: Mapping[str, Any],
    owner: str,
    *,
    held_out: Problem | None,
    share_samples: bool,
    target: Mapping[str, float] | None = None,
    asks_settling: bool = False,
) -> Study:
    """Check what all runs share, before the first one, and return it."""
    wanted = complete(options, owner)
    networks = dict(network) if isinstance(network, Mapping) else {"": network}
    starts = dict(wanted["x0"]) if isinstance(wanted["x0"], Mapping) else {"": wanted["x0"]}
    if not networks or not starts:
        raise ArgumentError(f"`network` and `x0` of {owner} must not be empty.")
    for each in networks.values():
        check_setting(problem, each, owner)
    make_sampler(problem, wanted)
    for start in starts.values():
        make_start(start, problem, wanted["seed"])
    if held_out is not None and not (isinstance(held_out, Problem) and held_out.dim == problem.dim):
        raise ArgumentError(
            f"`held_out` of {owner} must be a Problem of dimension {problem.dim}, like `problem`, but got {held_out!r}."
        )
    levels = _target(target, wanted["tolerance"])
    return Study(problem, networks, starts, wanted, held_out, levels, share_samples, asks_settling)


def configurations(
    study: Study, found: Sequence[Configuration], seeds: int, owner: str
) -> list[Configuration]:
    """Return every method on every network from every start with every seed, checked."""
    first = study.options["seed"]
    several = range(first, first + checks.count(seeds, "seeds", owner))
    for one in {(each.label, form(each.method)): each for each in found}.values():
        for network in study.networks.values():
            check_parts(one.method, study.problem, network, one.label, owner)
    is_own = study.options["batch_size"] is not None and not study.share_samples
    return [
        dataclasses.replace(one, sample_seed=_own_seed(one) if is_own else one.seed)
        for each in found
        for network in study.networks
        for start in study.starts
        for seed in several
        for one in (dataclasses.replace(each, network=network, start=start, seed=seed),)
    ]


def batches(study: Study, wanted: Sequence[Configuration], workers: int) -> Iterator[Batch]:
    """Yield the batches of a sweep; all batches of one shape have one width, so that they share compiled code."""
    if not study.is_batched:
        yield from (Batch([one], 1) for one in wanted)
        return
    groups: dict[Any, list[Configuration]] = {}
    for one in wanted:
        groups.setdefault(study.shape(one), []).append(one)
    for group in groups.values():
        width = min(MOST_RUNS, max(1, BATCH_BYTES // _run_bytes(study)))
        parts = max(-(-len(group) // width), min(workers, len(group)))
        for part in np.array_split(np.arange(len(group)), parts):
            yield Batch([group[place] for place in part], -(-len(group) // parts))


def run_batch(study: Study, batch: Batch) -> list[dict[str, Any]]:
    """Run a batch and return its rows, in order; fewer when Ctrl-C ended it."""
    began, (wanted, width) = time.perf_counter(), batch
    padded = [*wanted, *[wanted[-1]] * (width - len(wanted))] if study.is_batched else wanted
    simulators = [_simulator(study, one) for one in padded]
    options = [{**study.options, "seed": one.sample_seed, "x0": _start(study, one)} for one in padded]
    if study.is_batched:
        traces = drive_batch(simulators, options, share_samples=study.share_samples)[: len(wanted)]
    else:
        traces = list(map(drive, simulators, options))
    seconds = (time.perf_counter() - began) / len(wanted)
    return [
        row_of(study, one, trace, seconds)
        for one, trace in zip(wanted, traces, strict=True)
        if not trace.interrupted
    ]


def identity(study_facts: Mapping[str, Any], one: Configuration) -> str:
    """Return a hash that tells whether a stored row is that of a configuration."""
    common = {key: value for key, value in study_facts.items() if key not in ("networks", "starts")}
    described = {
        **common,
        "label": one.label,
        "method": type(one.method).__name__,
        "method_hash": fingerprint(type(one.method)),
        "hyper_parameters": describe(one.method),
        "network": [one.network, study_facts["networks"][one.network]],
        "start": [one.start, study_facts["starts"][one.start]],
        "seeds": [one.seed, one.sample_seed],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]


def row_of(study: Study, one: Configuration, trace: Trace, seconds: float) -> dict[str, Any]:
    """Return the row of a run: what it was, how it ended, what it reached and what it cost."""
    row: dict[str, Any] = {"method": one.label, **{name: _cell(value) for name, value in one.values.items()}}
    if len(study.networks) > 1:
        row["network"] = one.network
    if len(study.starts) > 1:
        row["start"] = one.start
    row["seed"] = one.seed
    if study.options["batch_size"] is not None:
        row["sample_seed"] = one.sample_seed
    row |= {"verdict": trace.verdict, "diverged_at": trace.diverged_at, "steps": trace.steps}
    row |= {f"final_{name}": trace.final[name] for name in HEADLINE}
    row |= {f"best_{name}": trace.best[name] for name in HEADLINE}
    if study.held_out is not None:
        row["held_out_loss"] = _loss(study.held_out, _mean(trace.final_x))
    if study.asks_settling:
        row |= _settling(study, one, trace)
    reached = _first_within(trace, study.target)
    row["bytes_sent"] = int(trace.bytes_sent[-1])
    row["iterations_to_target"] = None if reached is None else int(trace.k[reached])
    row["bytes_to_target"] = None if reached is None else int(trace.bytes_sent[reached])
    return {**row, "initial_loss": float(trace.loss[0]), "seconds": seconds}


def long_arrays(wanted: Sequence[Configuration]) -> dict[str, Any]:
    """Return the swept values that a cell of the table only names, by their names."""
    arrays = [
        np.asarray(value)
        for one in wanted
        for value in one.values.values()
        if np.ndim(value) and not callable(value) and not is_short(value)
    ]
    return {plain(array): array for array in arrays}


def _simulator(study: Study, one: Configuration) -> Simulator:
    network, key, seed = study.networks[one.network], study.shape(one)[:-1], one.sample_seed
    known = study.simulators.get(key)
    if known is None or (network.is_random and known.options["seed"] != seed):
        options = {**study.options, "seed": seed}
        known = study.simulators[key] = Simulator.of(one.method, study.problem, network, options, one.label)
    return known.with_numbers(one.method, seed, one.label)


def _start(study: Study, one: Configuration) -> Any:
    return make_start(study.starts[one.start], study.problem, one.seed).astype(study.options["dtype"])


def _kind(value: Any) -> Any:
    return "schedule" if callable(value) else np.shape(value)


def _cell(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if callable(value) or not np.ndim(value):
        return repr(value)
    return json.dumps(np.ravel(value).tolist()) if is_short(value) else plain(np.asarray(value))


def _start_name(start: Any) -> str:
    if callable(start):
        return fingerprint(start)
    return (
        str(start)
        if isinstance(start, str | None)
        else hashlib.sha256(np.asarray(start).tobytes()).hexdigest()
    )


def _run_bytes(study: Study) -> int:
    return STATES * 8 * study.problem.n_agents * study.problem.dim


def _first_within(trace: Trace, target: Mapping[str, float]) -> int | None:
    good = np.ones(len(trace.k), bool)
    for name, level in target.items():
        good &= trace.columns[name] <= level
    return int(np.argmax(good)) if good.any() else None


def _settling(study: Study, one: Configuration, trace: Trace) -> dict[str, Any]:
    x, judge = np.asarray(trace.final_x, np.float64), study.held_out or study.problem
    average = _mean(x)
    farthest = x[np.argmax(np.abs(x - average).max(axis=1))]
    sizes = {"grad_norm": _size(study.problem.local_gradients(average)), "consensus_error": _size(x)}
    found = {"farthest_loss": _loss(judge, farthest)}
    if study.held_out is not None:
        found["initial_held_out_loss"] = _loss(study.held_out, _mean(_start(study, one)))
    return found | remains(trace.columns, sizes, float(np.finfo(study.options["dtype"]).eps))


def _size(rows: Any) -> float:
    return float(np.linalg.norm(rows) / math.sqrt(len(rows)))


def _mean(x: Any) -> Any:
    return np.asarray(x, np.float64).mean(axis=0)


def _loss(problem: Problem, point: Any) -> float:
    return problem.loss(point) if np.isfinite(point).all() else math.inf


def _own_seed(one: Configuration) -> int:
    """Return the seed of the samples of one configuration, which does not depend on the others."""
    try:
        content = describe(one.method)
    except ArgumentError:
        content = sorted(one.values)
    text = repr((one.label, content, one.network, one.start, one.seed))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little")


def _target(target: Any, tolerance: float) -> dict[str, float]:
    if target is None:
        return {"grad_norm": tolerance, "consensus_error": tolerance}
    if not isinstance(target, Mapping) or not target:
        raise ArgumentError(
            f"`target` of sweep must map columns to levels, as in {{'grad_norm': 1e-3}}, but got {target!r}."
        )
    for name, level in target.items():
        checks.choice(name, "target", "sweep", FLOATS)
        if isinstance(level, bool) or not isinstance(level, int | float) or level != level:
            raise ArgumentError(f"`target` of sweep must give a number for `{name}`, but got {level!r}.")
    return {name: float(level) for name, level in target.items()}
