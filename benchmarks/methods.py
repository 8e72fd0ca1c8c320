"""Steps of every kind of method against scipy's products and a NumPy loop, from 1 000 to 1 000 000 agents.

``python -m benchmarks methods`` measures one problem and size after another, each in a fresh process, and adds a row
to ``docs/results/bench/methods.jsonl`` as soon as it is known. A call goes on where the last one ended.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Loop, Timing, medians, timed
from benchmarks.report import FOLDER, ROOT, load_rows
from digrad.errors import DigradError

AGENTS, DIMS = (1000, 10_000, 100_000, 1_000_000), (10, 100)
LARGEST = 10_000_000  # numbers of a state up to which all problems are measured; beyond, the quadratic alone
PROBLEMS = ("quadratic", "logistic", "user")
METHODS = {  # the products of a step, as (matrix, how many)
    "CGT": ("R", "C"),
    "AB": ("R", "C"),
    "PushPull": ("R", "C"),
    "PushDIGing": ("C", "C"),
    "SGP": ("C",),
    "SONATA": ("C", "C"),
    "SoftCGT": ("R", "C"),
    "DGD": ("W",),
}
STEP_SIZE, THRESHOLD = 1e-4, 5.0  # with which no method diverges: a run that has diverged ends
SAMPLES, BATCH = {"logistic": 8, "user": 5}, 2
STEPS = (20, 1000)  # of one timed call, at least and at most, as those of `simulate`
NUMBERS = 20_000_000  # that a timed call steps through, in between
REFERENCE_STEPS = 3  # at most, of one timed call of NumPy and scipy on a large network
BOX = 8.0  # seconds for the turns of one method, about; at least one turn
FILE = "methods.jsonl"


def measure_methods(*, box: float = BOX, agents: Iterable[int] = AGENTS, dims: Iterable[int] = DIMS) -> None:
    """Add the rows that are missing, the smallest networks first."""
    wanted = [(n, d, problem) for n in agents for d in dims for problem in PROBLEMS]
    done = {(row["n"], row["d"], row["problem"], row["method"]) for row in load_rows(FILE)}
    for n, d, problem in wanted:
        missing = [name for name in METHODS if (n, d, problem, name) not in done]
        if not missing or (n * d > LARGEST and problem != "quadratic"):
            continue
        print(f"{problem}, {n} agents, dimension {d}", file=sys.stderr)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.methods", problem, str(n), str(d), str(box), *missing]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


def rows_of(
    problem_name: str, n: int, d: int, box: float, methods: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """Yield what the steps of one problem and size take, in milliseconds, method after method."""
    import jax

    problem, numpy_gradient = make_problem(problem_name, n, d)
    for name in methods:
        with jax.enable_x64(True):
            work = Work(
                name, problem, numpy_gradient, n, d, batch=BATCH if problem_name == "logistic" else None
            )
            times = _turns(work, box)
        found = {key: round(1e3 * (timing.wall), 4) for key, timing in times.items()}
        yield {"problem": problem_name, "n": n, "d": d, "method": name, **found}


class Work:
    """Some steps of a method as digrad, scipy's products and NumPy run them, float32 unless said otherwise."""

    def __init__(
        self,
        name: str,
        problem: Any,
        gradient: Any,
        n: int,
        d: int,
        *,
        batch: int | None,
        dtype: str = "float32",
    ) -> None:
        import digrad
        from digrad.sampling import WithReplacement, normal_start

        cls = getattr(digrad, name)
        options = {"threshold": THRESHOLD} if "threshold" in cls.__dataclass_fields__ else {}
        network = make_network(n, is_undirected=name == "DGD")
        self.name, self.gradient = name, partial(gradient, np.dtype(dtype))
        self.steps = int(np.clip(NUMBERS // (n * d), *STEPS))
        self.reference_steps = max(REFERENCE_STEPS, min(self.steps, NUMBERS // (10 * n * d)))
        self.x0 = normal_start(n, d, 0).astype(dtype)
        self.matrices = {
            letter: getattr(network, letter).matrix.astype(dtype) for letter in set(METHODS[name])
        }
        sampler = WithReplacement(problem.sizes, batch, 0) if batch else None
        method = cls(step_size=STEP_SIZE, **options)
        self.simulator = digrad.Simulator(method, problem, network, batch_size=batch, dtype=dtype)
        self.compiled = Loop(self.simulator, self.x0, self.steps)
        self.batches = sampler.batches(0, self.steps) if sampler else None

    def run(self, steps: int | None = None) -> Any:
        """Run digrad's loop in one call; return the estimates."""
        state = self.compiled.run(self.steps if steps is None else steps)
        if not state.alive:
            raise DigradError(f"{self.name} diverged: nothing to compare.")
        return self.simulator.estimate(state)

    def products(self, steps: int) -> None:
        """Multiply by the method's matrices, as often as in so many steps."""
        for _ in range(steps):
            for letter in METHODS[self.name]:
                _ = self.matrices[letter] @ self.x0

    def loop(self, steps: int) -> Any:
        """Run the same steps with NumPy and scipy; return the estimates."""
        gradient = [
            (lambda x, k=k: self.gradient(x, None if self.batches is None else self.batches[k]))
            for k in range(steps)
        ]
        R, C, W = (self.matrices.get(letter) for letter in "RCW")
        return LOOPS[self.name](self.x0, gradient, R, C, W)


def _tracked(C: Any, y: Any, grad: Any, g: Any) -> Any:
    y = C @ y
    y += grad
    y -= g
    return y


def _cgt(x: Any, gradients: Any, R: Any, C: Any, W: Any, *, scale: Callable[[Any], Any]) -> Any:
    y, g = np.zeros_like(x), np.zeros_like(x)
    for gradient in gradients:
        grad = gradient(x)
        y = _tracked(C, y, grad, g)
        x = R @ x
        x -= scale(y) * y
        g = grad
    return x


def _push_pull(x: Any, gradients: Any, R: Any, C: Any, W: Any) -> Any:
    y, g = np.zeros_like(x), np.zeros_like(x)
    for gradient in gradients:
        grad = gradient(x)
        y = _tracked(C, y, grad, g)
        x = R @ (x - STEP_SIZE * y)
        g = grad
    return x


def _push_diging(x: Any, gradients: Any, R: Any, C: Any, W: Any) -> Any:
    y, g, w = np.zeros_like(x), np.zeros_like(x), np.ones((len(x), 1), x.dtype)
    for gradient in gradients:
        grad = gradient(x / w)
        y = _tracked(C, y, grad, g)
        x, w = C @ (x - STEP_SIZE * y), C @ w
        g = grad
    return x / w


def _sgp(x: Any, gradients: Any, R: Any, C: Any, W: Any) -> Any:
    w = np.ones((len(x), 1), x.dtype)
    for gradient in gradients:
        x, w = C @ (x - STEP_SIZE * gradient(x / w)), C @ w
    return x / w


def _sonata(x: Any, gradients: Any, R: Any, C: Any, W: Any) -> Any:
    s, g, w = np.zeros_like(x), np.zeros_like(x), np.ones((len(x), 1), x.dtype)
    for gradient in gradients:
        grad = gradient(x)
        s = _tracked(C, s, grad, g)
        weighted, after = C @ (w * x - STEP_SIZE * s), C @ w
        x, w, g = weighted / after, after, grad
    return x


def _dgd(x: Any, gradients: Any, R: Any, C: Any, W: Any) -> Any:
    for gradient in gradients:
        grad = gradient(x)
        x = W @ x
        x -= STEP_SIZE * grad
    return x


def _norms(y: Any) -> Any:
    return np.sqrt(np.einsum("nd,nd->n", y, y))[:, None]


LOOPS: dict[str, Callable[..., Any]] = {
    "CGT": partial(_cgt, scale=lambda y: STEP_SIZE / np.maximum(_norms(y) / THRESHOLD, 1)),
    "AB": partial(_cgt, scale=lambda y: STEP_SIZE),
    "SoftCGT": partial(_cgt, scale=lambda y: STEP_SIZE / (1 + _norms(y) / THRESHOLD)),
    "PushPull": _push_pull,
    "PushDIGing": _push_diging,
    "SGP": _sgp,
    "SONATA": _sonata,
    "DGD": _dgd,
}


@cache
def make_network(n: int, *, is_undirected: bool) -> Any:
    """Return a random digraph with three edges from each agent, or the same with all edges in both directions."""
    from digrad.graphs import from_edges, k_out
    from digrad.network import Network

    graph = k_out(n, 3, seed=0)
    if is_undirected:
        edges = graph.edge_array
        graph = from_edges(n, np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0))
    return Network(graph)


def make_problem(name: str, n: int, d: int) -> tuple[Any, Callable[[np.dtype[Any], Any, Any], Any]]:
    """Return a problem, and its gradient (dtype, x, samples) as one would write it in NumPy."""
    from digrad import problems
    from digrad.data import Dataset, Partition

    generator, cast = np.random.default_rng(0), {}
    if name == "quadratic":
        a, b = generator.uniform(1, 2, (n, d)), generator.standard_normal((n, d))

        def quadratic(dtype: Any, x: Any, samples: Any) -> Any:
            curvature, linear = cast.setdefault(dtype, (a.astype(dtype), b.astype(dtype)))
            grad = curvature * x
            grad -= linear
            return grad

        return problems.quadratic(curvature=a, linear=b), quadratic
    m = SAMPLES[name]
    features, targets = generator.standard_normal((n, m, d)), generator.choice([-1.0, 1.0], (n, m))
    if name == "logistic":
        data = Dataset("random", features.reshape(n * m, d), targets.reshape(-1))
        partition = Partition(tuple(np.arange(n * m).reshape(n, m)))
        problem = problems.logistic(data=data, agents=n, partition=partition, reg_weight=1e-3, reg_power=2.0)

        def logistic(dtype: Any, x: Any, samples: Any) -> Any:
            if dtype not in cast:
                cast[dtype] = (targets[:, :, None] * features).astype(dtype).reshape(n * m, d)
            rows = (np.arange(n)[:, None] * m + samples).reshape(-1)
            batch = np.take(cast[dtype], rows, axis=0).reshape(n, -1, d)
            residual = -1 / (batch.shape[1] * (1 + np.exp(np.matmul(batch, x[:, :, None])[:, :, 0])))
            return np.matmul(residual[:, None], batch)[:, 0] + 2e-3 * x

        return problem, logistic

    def user(dtype: Any, x: Any, samples: Any) -> Any:
        rows, goal = cast.setdefault(dtype, (features.astype(dtype), targets.astype(dtype)))
        residual = np.tanh(np.matmul(rows, x[:, :, None])[:, :, 0] - goal) / m
        return np.matmul(residual[:, None], rows)[:, 0]

    return problems.from_loss(_log_cosh, list(zip(features, targets, strict=True)), d), user


def _log_cosh(w: Any, samples: Any) -> Any:
    import jax.numpy as jnp

    features, targets = samples
    return jnp.log(jnp.cosh(features @ w - targets)).mean()


def _turns(work: Work, box: float) -> dict[str, Timing]:
    """Return the medians of the seconds per step; all take turns until the box is full."""
    cores = sorted(os.sched_getaffinity(0))[-2:]
    for run in (work.run, work.products, work.loop):
        run(1)  # compiles, and touches all memory

    def on(some: list[int]) -> None:
        with _held(set(some)):
            work.run()

    candidates = {
        "one": (lambda: on(cores[-1:]), work.steps),
        "two": (lambda: on(cores), work.steps),
        "products": (lambda: work.products(work.reference_steps), work.reference_steps),
        "loop": (lambda: work.loop(work.reference_steps), work.reference_steps),
    }
    times: dict[str, list[Timing]] = {name: [] for name in candidates}
    began = time.perf_counter()
    while not times["loop"] or time.perf_counter() - began < box:
        for name, (run, steps) in candidates.items():
            spent = timed(run)
            times[name].append(Timing(spent.cpu / steps, spent.wall / steps))
    return {name: medians(found) for name, found in times.items()}


@contextmanager
def _held(cores: set[int]) -> Iterator[None]:
    """Hold all threads of this process on some cores."""
    before = os.sched_getaffinity(0)
    _hold(cores)
    try:
        yield
    finally:
        _hold(before)


def _hold(cores: set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that is just ending
            os.sched_setaffinity(int(task.name), cores)


if __name__ == "__main__":
    problem_name, agents, dim, seconds, *names = sys.argv[1:]
    for row in rows_of(problem_name, int(agents), int(dim), float(seconds), names):
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / FILE).open("a") as file:
            file.write(json.dumps(row) + "\n")
