"""Minimum of given losses in one call: losses, a start and a network in, a minimum out."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.graphs import Digraph, GraphSequence
from digrad.methods import CGT
from digrad.network import Network
from digrad.problems import Problem, from_loss
from digrad.simulation import simulate
from digrad.sweeps.recommend_threshold import recommend_threshold
from digrad.sweeps.tune import tune
from digrad.types import Method

if TYPE_CHECKING:
    import networkx
    from scipy.optimize import OptimizeResult

_TRIAL_STEPS = 200  # of the search for a step size
_SHARES = (0.5, 0.1, 0.02)  # of the step size found, in turn until the run converges


def minimize(
    fun: Problem | Callable[[Any, Any], Any] | Sequence[Callable[[Any], Any]],
    x0: npt.ArrayLike,
    network: "Network | Digraph | GraphSequence | networkx.Graph",
    *,
    data: Sequence[Any] | None = None,
    method: Method | None = None,
    steps: int = 10_000,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> "OptimizeResult":
    """Minimise the average of the agents' losses over a network, and return SciPy's kind of result.

    Args:
        fun: One JAX function ``f_i(x)`` per agent; or one function ``loss(x, batch)`` of all with ``data``; or a
            problem.
        x0: Common start of all agents, ``[d]``.
        network: The communication graph and its weights; a graph alone has uniform ones.
        data: One batch per agent, for ``loss(x, batch)``.
        method: By default CGT with the recommended threshold and half of the largest step size that is stable over
            the first 200 steps; if it does not converge, a tenth and a fiftieth.
        steps: At the most.
        tolerance: Tolerance for the gradient norm and the disagreement of the agents.
        seed: Random seed of random starts and samples.

    Returns:
        ``x``, ``fun``, ``jac`` of the average loss, ``success``, ``message``, ``nit`` (steps), ``njev`` (gradients of
        each agent), and besides ``method``, ``trace`` and ``x_agents`` ``[n, d]``.

    Raises:
        ArgumentError: The functions do not fit the network or the start, or no step size is stable.

    Example:
        >>> import digrad as dg
        >>> losses = [lambda x, i=i: ((x - i) ** 2).sum() + (x**4).sum() for i in range(3)]
        >>> found = minimize(losses, [5.0, 5.0], dg.graphs.ring(3))
        >>> found.success, found.x.round(4)
        (True, array([0.5898, 0.5898]))
    """
    if not isinstance(network, Network):
        network = Network(network)
    start = _start(x0)
    problem = _problem(fun, start, network.n, data)
    found: Any = None
    for tried in [method] if method else _candidates(problem, network, start, tolerance, seed):
        trace = simulate(
            tried,
            problem,
            network,
            steps=steps,
            x0=start,
            tolerance=tolerance,
            stop_at_tolerance=True,
            seed=seed,
            record_every=min(50, steps),
        )
        found = _result(problem, tried, trace, tolerance)
        if found.success:
            break
    return found


def _start(x0: Any) -> npt.NDArray[np.float64]:
    try:
        start = np.asarray(x0, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"`x0` of minimize must be a vector of numbers, but got {x0!r}.") from None
    if start.ndim != 1 or not start.size:
        raise ArgumentError(f"`x0` of minimize must be a vector [d], but has shape {list(start.shape)}.")
    return start


def _problem(fun: Any, start: npt.NDArray[np.float64], n: int, data: Any) -> Problem:
    if isinstance(fun, Problem):
        return fun
    if callable(fun):
        if data is None:
            raise ArgumentError(
                "`fun` of minimize is one function, so `data` must hold one batch per agent; or give a list with one "
                "function of x per agent."
            )
        return from_loss(fun, data, start)
    losses = list(fun) if isinstance(fun, Sequence) else None
    if not losses or not all(map(callable, losses)):
        raise ArgumentError(
            "`fun` of minimize must be a function with `data`, a list of functions, or a Problem."
        )
    if len(losses) != n:
        raise ArgumentError(
            f"`fun` of minimize must hold one function per agent, {n} of them, but it holds {len(losses)}."
        )
    return from_loss(
        lambda x, i: jax.lax.switch(i[0], losses, x), [np.array([i]) for i in range(n)], start, name="f_i"
    )


def _candidates(
    problem: Problem, network: Network, start: npt.NDArray[np.float64], tolerance: float, seed: int
) -> Iterator[Method]:
    """Yield CGT with smaller and smaller step sizes: one that clips for ever may look stable in a short search."""
    slope = float(np.linalg.norm(problem.gradient(start)))
    if not np.isfinite(slope):
        raise ArgumentError(
            f"`fun` of minimize must have a finite gradient at `x0`, but its norm is {slope}; start elsewhere."
        )
    if slope <= tolerance:  # the run will end before its first step, and no scale can be learned here
        yield CGT(step_size=1.0, threshold=1.0)
        return
    threshold = recommend_threshold(problem, x0=start).threshold
    first = CGT(step_size=0.1 / max(1.0, threshold), threshold=threshold)
    found = tune(first, problem, network, steps=_TRIAL_STEPS, x0=start, seed=seed, budget=16, precision=1.5)
    if found.value is None:
        raise ArgumentError(
            "`method` of minimize: no step size was stable; give a method with one of your own."
        )
    for share in _SHARES:
        yield CGT(step_size=share * found.value, threshold=threshold)


def _result(problem: Problem, method: Method, trace: Any, tolerance: float) -> "OptimizeResult":
    from scipy.optimize import OptimizeResult

    x = trace.final_x.mean(axis=0)
    messages = {
        "converged": f"Gradient norm and disagreement are at most {tolerance:g}.",
        "diverged": f"{type(method).__name__} diverged at step {trace.diverged_at}; give a smaller step size.",
        "not converged": f"Not within {tolerance:g} after {trace.steps} steps; give more of them.",
        "stalled": f"Not within {tolerance:g}, and no longer moving after {trace.steps} steps; "
        "give a method with a smaller step size.",
    }
    return OptimizeResult(
        x=x,
        fun=problem.loss(x),
        jac=problem.gradient(x),
        success=trace.verdict == "converged",
        status=list(messages).index(trace.verdict),
        message=messages[trace.verdict],
        nit=trace.steps,
        njev=trace.steps,
        method=method,
        trace=trace,
        x_agents=trace.final_x,
    )
