"""Measure what docs/theory.md says of certificates, into docs/results/certificates.

python docs/certificates.py table     certified and largest stable steps of the instances of the page
python docs/certificates.py more      the same on 24 random instances (seed 11)
python docs/certificates.py states    from which step on runs are proven
python docs/certificates.py times     seconds for 5, 50 and 200 agents
python docs/certificates.py rises     V along a million random steps (seed 0)
python docs/certificates.py search    losses, clip patterns and networks for which V rises, for MINUTES of CPU
                                      (default 60), divided between PROCESSES, for at most CLOCK minutes by the clock
"""

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import digrad as dg
from digrad.sampling import normal_start
from digrad.theory.certificates.frequency_responses import Matrices
from digrad.theory.certificates.instance import Instance, Start
from digrad.theory.certificates.linearisation import largest_stable_step
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.prove_step_size import largest
from digrad.theory.certificates.storage_function import perron_error, prove_storages
from digrad.theory.certificates.tap_search import TapSearch

OUT = Path(__file__).parent / "results" / "certificates"
EXAMPLE = dg.Network(dg.graphs.example5())
PAPER = {"reg_weight": [5e-4, 1e-3, 2e-3, 1e-3, 1e-3], "reg_power": [4, 5, 6, 5, 4]}
# Section 5 of the specification: J = 1, J = 4, from a state, largest stable.
EXPECTED = {
    "example_quadratic, example5": (0.061, 0.099, 0.101, 0.166),
    "example_quartic, example5": (0.025, 0.034, 0.094, 0.151),
    "cosh, example5": (0.030, 0.041, 0.165, 0.240),
    "quadratic, exponential(16)": (0.040, 0.049, 0.051, 0.075),
    "quadratic, ring(10)": (0.0016, 0.0022, 0.0022, 0.0137),
    "digits, example5": (0.080, 0.122, 0.384, 0.573),
    "digits, example5, start at 8": (0.062, 0.095, 0.384, 0.575),
    "a9a, example5": (0.106, 0.159, 0.414, 0.621),
    "a9a, example5, start at 11": (0.069, 0.105, 0.414, 0.661),
}


def cosh() -> dg.Problem:
    """Return the cosh losses of the page."""
    rng = np.random.default_rng(0)
    center, scale = rng.normal(size=(5, 3)), rng.uniform(0.5, 2, 5)
    return dg.problems.cosh(center=center, scale=scale)


def separable(n: int) -> dg.Problem:
    """Return separable quadratics."""
    rng = np.random.default_rng(2)
    curvature = np.exp(rng.uniform(np.log(0.1), np.log(10), (n, 4)))
    return dg.problems.quadratic(curvature=curvature, linear=2 * rng.normal(size=(n, 4)))


def at_distance(problem: dg.Problem, radius: float) -> np.ndarray:
    """Return a start at that distance from 0."""
    direction = np.random.default_rng(5).normal(size=problem.dim)
    return radius * direction / np.linalg.norm(direction)


def measure(
    problem: dg.Problem, network: dg.Network, threshold: float = 5.0, x0: Any = None, *, one_tap: bool = False
) -> dict[str, Any]:
    """Return the certified steps, the limit from a state, and the largest stable step of an instance."""
    began = time.process_time()
    found = dg.theory.certify(problem, network, threshold, x0)
    seconds = time.process_time() - began
    instance, n = Instance(problem, network), network.n
    phases, losses = instance.phases, instance.losses
    row: dict[str, Any] = {"certified": found.alpha_max, "cpu_seconds": round(seconds, 2)}
    if one_tap:
        x = np.broadcast_to(np.zeros(problem.dim) if x0 is None else x0, (n, problem.dim)).astype(float)
        single = Instance(problem, network, taps=1)
        proof = largest(Start(single, x, problem.local_gradients(x), np.full(n, threshold)))
        row["one_tap"] = proof and proof.step_size
    curvature = losses.curvature(losses.lower_bound, np.zeros(n), 0.0)
    best = instance.search.best(np.maximum(curvature, 1e-9 * curvature.max()))
    row["state"] = best.step_size  # the supremum of what states near the minimum allow
    row["stable"] = largest_stable_step(problem, phases, first=row["certified"] or row["state"])
    if row["stable"]:
        row["stable/certified"] = row["certified"] and row["stable"] / row["certified"]
        row["stable/state"] = row["stable"] / row["state"]
    return row


def table() -> dict[str, Any]:
    """Return the instances of the page."""
    digits = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    a9a = dg.problems.logistic(data="a9a", agents=5, reg_weight=1e-3, reg_power=4)
    instances = {
        "example_quadratic, example5": (dg.problems.example_quadratic(), EXAMPLE),
        "example_quartic, example5": (dg.problems.example_quartic(), EXAMPLE),
        "cosh, example5": (cosh(), EXAMPLE),
        "quadratic, exponential(16)": (separable(16), dg.Network(dg.graphs.exponential(16))),
        "quadratic, ring(10)": (separable(10), dg.Network(dg.graphs.ring(10))),
        "digits, example5": (digits, EXAMPLE),
        "digits, example5, start at 8": (digits, EXAMPLE, 5.0, at_distance(digits, 8)),
        "a9a, example5": (a9a, EXAMPLE),
        "a9a, example5, start at 11": (a9a, EXAMPLE, 5.0, at_distance(a9a, 11)),
    }
    rows = {}
    for name, instance in instances.items():
        row = measure(*instance, one_tap=True)
        found = (row["one_tap"], row["certified"], row["state"], row["stable"])
        row["over_specification"] = [round(f / e, 3) for f, e in zip(found, EXPECTED[name], strict=True)]
        rows[name] = row
        print(name, row, flush=True)
    paper = dg.problems.logistic(data="a9a", agents=5, partition="iid", **PAPER)
    for c0 in (5.0, 1.0):
        rows[f"a9a, the paper's problem, c0 = {c0:g}"] = {
            "certified": dg.theory.certify(paper, EXAMPLE, c0).alpha_max
        }
    return {"rows": rows, **medians(rows)}


def medians(rows: dict[str, Any]) -> dict[str, float]:
    """Return the medians of the ratios."""
    names = ("stable/certified", "stable/state")
    return {
        f"median {name}": float(np.median([row[name] for row in rows.values() if row.get(name)]))
        for name in names
    }


def more() -> dict[str, Any]:
    """Return 24 random instances."""
    rng, rows = np.random.default_rng(11), {}
    for i in range(24):
        n = int(rng.choice([3, 5, 8, 12, 20, 30, 50] if i % 6 == 5 else [3, 5, 8, 12]))
        graph = (
            dg.graphs.k_out(n, 2, seed=i),
            dg.graphs.random_digraph(n, p=0.4, seed=i),
            dg.graphs.exponential(n),
        )[i % 3]
        d = int(rng.integers(1, 5))
        x0, center = rng.normal(size=d) * rng.choice([0.0, 1.0, 2.0]), rng.normal(size=(n, d))
        curvature = np.exp(rng.uniform(-1.5, 1.5, (n, d)))
        kind = i % 5
        if kind == 0:
            problem = dg.problems.quadratic(curvature=curvature, linear=center)
        elif kind == 1:
            problem = dg.problems.cosh(center=0.5 * center, scale=rng.uniform(0.5, 2, n))
        elif kind == 2:
            problem = dg.problems.quadratic(curvature=curvature, linear=center, quartic=0.5)
        elif kind == 3:
            problem = dg.problems.quartic(center=center, scale=rng.uniform(0.5, 2, n))
        else:
            name, power = ("digits", "breast_cancer")[i % 2], float(rng.choice([2, 4]))
            problem = dg.problems.logistic(data=name, agents=n, reg_weight=1e-2, reg_power=power, seed=i)
            x0 = np.zeros(problem.dim)
        c0 = float(rng.choice([0.5, 2, 5]))
        rows[f"{i}: {problem.name}, n = {n}, d = {problem.dim}, c0 = {c0:g}"] = row = measure(
            problem, dg.Network(graph), c0, x0
        )
        print(i, row, flush=True)
    return {"rows": rows, **medians(rows)}


def states() -> dict[str, Any]:
    """Return the steps from which runs are proven."""
    rows: dict[str, Any] = {}
    for data, partition in (("digits", "sorted"), ("a9a", "iid"), ("a9a", "sorted")):
        problem = dg.problems.logistic(data=data, agents=5, partition=partition, **PAPER)
        x0 = normal_start(5, problem.dim, 0)
        check = dg.theory.check_run(problem, EXAMPLE, step_size=0.05, threshold=5.0, x0=x0, steps=600)
        rows[f"{data}, {partition}, the paper's regularisers, N(0, 1), alpha = 0.05"] = check.proven_from
        print(data, partition, check.proven_from, check.verdict, flush=True)
    return rows


def times() -> dict[str, Any]:
    """Return CPU seconds by size: of the first call, which compiles the losses, and of five agents of a second one."""
    rows: dict[Any, Any] = {}
    instances: dict[Any, Any] = {}
    for n in (5, 50, 200):
        rng = np.random.default_rng(0)
        problem = dg.problems.quadratic(
            curvature=np.exp(rng.uniform(-1, 1, (n, 2))), linear=rng.normal(size=(n, 2))
        )
        instances[n] = (problem, dg.Network(dg.graphs.k_out(n, 3, seed=0)))
    instances["5, cosh"] = (cosh(), EXAMPLE)
    for data in ("digits", "a9a"):
        problem = dg.problems.logistic(data=data, agents=5, reg_weight=1e-3, reg_power=4)
        instances[f"5, {data}"] = (problem, EXAMPLE)
    for name, (problem, network) in instances.items():
        seconds = []
        for _ in range(2 if network.n == 5 else 1):
            began = time.process_time()
            found = dg.theory.certify(problem, network, 5.0)
            seconds.append(round(time.process_time() - began, 2))
        rows[name] = {"first": seconds[0], "cpu_seconds": seconds[-1], "certified": found.alpha_max}
        print(name, rows[name], flush=True)
    rows["201"] = dg.theory.certify(
        dg.problems.quadratic(curvature=np.ones((201, 1)), linear=np.ones((201, 1))),
        dg.Network(dg.graphs.ring(201)),
        5.0,
    ).reasons[0]
    return rows


class Ramps:
    """Losses of many runs at once: each coordinate a piecewise quadratic with slopes of f' within [low, L]."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], L: np.ndarray, low: float) -> None:
        pieces = 4
        levels = rng.choice([low, 1.0, low, 1.0, 0.5], size=(*shape, pieces + 1))
        self.kinks = np.sort(rng.normal(size=(*shape, pieces)) * 2.0 ** rng.uniform(-3, 2), axis=-1)
        self.slopes = levels * L[:, None, None]
        self.linear = rng.normal(size=shape)

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return f_i(x_i) ``[B, n]`` and the gradients ``[B, n, d]``."""
        ramps = np.maximum(x[..., None] - self.kinks, 0.0)
        steps = np.diff(self.slopes, axis=-1)
        first = self.slopes[..., 0]
        grad = first * x + np.sum(steps * ramps, axis=-1) + self.linear
        value = first * x**2 / 2 + np.sum(steps * ramps**2, axis=-1) / 2 + self.linear * x
        return value.sum(axis=-1), grad


class Case:
    """A random network with a proven storage for random curvatures."""

    def __init__(self, rng: np.random.Generator) -> None:
        n, seed = int(rng.integers(2, 7)), int(rng.integers(2**31))
        graph = [dg.graphs.ring(n), dg.graphs.random_digraph(n, p=0.5, seed=seed), dg.graphs.complete(n)][
            int(rng.integers(3))
        ]
        is_periodic = n > 2 and rng.random() < 0.25
        self.phases = Matrices.of(dg.Network(dg.graphs.split(graph, 2) if is_periodic else graph))
        self.convex = bool(rng.random() < 0.6)
        taps = int(rng.integers(1, 5)) if self.convex and not is_periodic else 1
        self.L = rng.uniform(0.2, 2.0, n)
        found = TapSearch(self.phases, taps, self.convex).best(self.L)
        self.alpha = float(rng.choice([0.5, 0.9, 0.98])) * found.step_size
        self.kept, self.taps = 0.005, found
        asked = Proof(self.alpha, found, self.L, self.convex, self.kept)
        self.storages = prove_storages(self.phases, asked, relative=perron_error(self.phases))

    def worst(
        self, rng: np.random.Generator, runs: int, steps: int, pattern: int, losses: Ramps, x: Any
    ) -> float:
        """Return the largest relative violation of the three promises along some runs."""
        phases, taps, count, a = self.phases, self.taps, len(self.taps.a), self.alpha
        storages = self.storages
        assert storages is not None
        n = phases[0].n
        c = taps.a - taps.b if self.convex else np.ones(1)
        later = np.array([c[i:].sum() for i in range(count)])
        f, g = losses(x)
        y, past, worst, before, level = g, [], -np.inf, None, None
        awake = rng.random((64, n)) < 0.5
        for k in range(steps + 1):
            now = phases[k % len(phases)]
            xbar, ybar = np.einsum("i,bid->bd", now.u / n, x), y.mean(axis=1)
            e_x, e_y = x - xbar[:, None], y - now.v[:, None] * ybar[:, None]
            base = f.sum(axis=1) - np.sum(g * e_x, axis=(1, 2))
            size = np.abs(f).sum(axis=1) + np.sum(np.abs(g * e_x), axis=(1, 2))
            moved = np.zeros_like(base) if not past else n * np.sum(ybar * (xbar - past[0][2]), axis=1)
            past.insert(0, (base, moved, xbar, x, g))
            del past[count + 1 :]

            def back(j: int, i: int) -> Any:
                return past[min(j, len(past) - 1)][i] if i != 1 or j < len(past) else 0.0

            V = sum(later[j] * back(j, 0) for j in range(count))
            V = V + sum(later[j + 1 :].sum() * back(j, 1) for j in range(count - 1))
            state = [e_x[:, :-1] / a, e_y[:, :-1]]
            state += [(x - back(j, 3)) / a for j in range(1, count)]
            state += [g - back(j, 4) for j in range(1, count)]
            sigma, P = np.concatenate(state, axis=1), storages[k % len(phases)]
            V = V + a * np.einsum("bsd,st,btd->b", sigma, P, sigma)
            size = size + a * np.einsum("bsd,st,btd->b", np.abs(sigma), np.abs(P), np.abs(sigma)) + 1e-300
            F = losses(np.broadcast_to(xbar[:, None], x.shape))[0].sum(axis=1)
            level = V if level is None else level
            scale = np.maximum(size, before[1] if before else size)
            worst = max(worst, np.max((F - V) / scale), np.max((F - level) / scale))
            if before:
                worst = max(worst, np.max((V - before[0]) / scale))
            if pattern == 0:
                s = np.minimum(1, 0.5 / np.maximum(np.linalg.norm(y, axis=2, keepdims=True), 1e-300))
            elif pattern == 1:
                s = rng.random((len(x), n, 1))
            elif pattern == 2:
                s = (rng.random((len(x), n, 1)) < 0.5).astype(float)
            else:
                s = awake[k % (2 + pattern)][:, None].astype(float)  # periodic sleep
            p = s * y
            before = (V - self.kept * a * np.einsum("i,bid->b", now.ratio, p * y), size)
            x = now.R @ x - a * p
            f, old = None, g
            f, g = losses(x)
            y = now.C @ y + g - old
        return worst


def random_case(rng: np.random.Generator) -> Case:
    """Return a case with a storage."""
    while True:
        case = Case(rng)
        if case.storages:
            return case


def rises(total: float = 1e6) -> dict[str, Any]:
    """Return the largest relative rise of V."""
    rng, done, worst, cases, kinds = np.random.default_rng(0), 0, -np.inf, 0, {}
    while done < total:
        case = random_case(rng)
        n, d, runs, steps = case.phases[0].n, int(rng.integers(1, 4)), 40, 250
        losses = Ramps(rng, (runs, n, d), case.L, 0.0 if case.convex else -1.0)
        x = rng.normal(size=(runs, n, d)) * 2.0 ** rng.uniform(-2, 3)
        pattern = int(rng.integers(6))
        found = case.worst(rng, runs, steps, pattern, losses, x)
        done, cases, worst = done + runs * steps, cases + 1, max(worst, found)
        kind = (
            f"{'convex' if case.convex else 'nonconvex'}, {'periodic' if len(case.phases) > 1 else 'fixed'}"
        )
        kinds[kind] = kinds.get(kind, 0) + runs * steps
        if cases % 10 == 0:
            print(done, worst, flush=True)
    return {"steps": done, "networks": cases, "largest relative rise": worst, "steps by kind": kinds}


def climb(minutes: float, seed: int, until: float) -> dict[str, Any]:
    """Climb from random losses, starts and patterns towards the least decrease of V; report the largest rise met."""
    rng, worst, tried, climbs, cpu = np.random.default_rng(seed), -np.inf, 0, 0, time.process_time()
    while time.process_time() - cpu < 60 * minutes and time.time() < until:
        case, runs, steps = random_case(rng), 16, 60
        n, d, pattern = case.phases[0].n, int(rng.integers(1, 3)), int(rng.integers(6))
        best, climbs, low = -np.inf, climbs + 1, 0.0 if case.convex else -1.0
        losses, x = Ramps(rng, (runs, n, d), case.L, low), rng.normal(size=(runs, n, d))
        for _ in range(30):
            other, move = Ramps(rng, (runs, n, d), case.L, low), rng.normal(size=x.shape)
            other.kinks = np.sort(losses.kinks + 0.2 * rng.normal(size=losses.kinks.shape), axis=-1)
            keep = rng.random(losses.slopes.shape) < 0.9
            other.slopes = np.where(keep, losses.slopes, other.slopes)
            other.linear = losses.linear + 0.1 * other.linear
            start = x + 0.1 * move
            found = case.worst(rng, runs, steps, pattern, other, start)
            tried += runs * steps
            if found > best:
                best, losses, x = found, other, start
        worst = max(worst, best)
        if climbs % 20 == 0:
            print(seed, round((time.process_time() - cpu) / 60, 1), climbs, tried, worst, flush=True)
    spent = (time.process_time() - cpu) / 60
    return {"cpu_minutes": spent, "climbs": climbs, "steps": tried, "largest relative rise": worst}


def search(minutes: float = 60.0, processes: float = 1, clock: float = np.inf) -> dict[str, Any]:
    """Climb for so many minutes of CPU, divided between processes of seeds 1, 2, ..., or so many by the clock."""
    began, count = time.time(), int(processes)
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        asked = [minutes / count] * count, range(1, count + 1), [began + 60 * clock] * count
        found = list(pool.map(climb, *asked))
    return {
        "minutes": round((time.time() - began) / 60, 1),
        "cpu_minutes": round(sum(part["cpu_minutes"] for part in found), 1),
        **{name: sum(part[name] for part in found) for name in ("climbs", "steps")},
        "largest relative rise": max(part["largest relative rise"] for part in found),
    }


def main() -> None:
    """Measure what was asked for, write it and print it."""
    name, *rest = sys.argv[1:]
    made = {f.__name__: f for f in (table, more, states, times, rises, search)}[name]
    found = {"command": f"python docs/certificates.py {' '.join(sys.argv[1:])}", **made(*map(float, rest))}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(found, indent=1, default=float) + "\n")
    print(json.dumps(found, indent=1, default=float))


if __name__ == "__main__":
    main()
