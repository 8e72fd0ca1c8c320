"""The options of a run: named once, here, with their defaults and their checks.

:func:`digrad.simulate`, :func:`digrad.compare`, :func:`digrad.sweep` and :func:`digrad.tune` take them as keywords,
:class:`digrad.Simulator` takes those that are not about the end of a run, and specifications have keys of these names.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_type_hints,
)

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.core.state_repair import check_churn
from digrad.core.validation import check_fit, check_method, check_network
from digrad.errors import ArgumentError
from digrad.links import Links
from digrad.noise import Noise, check_noise
from digrad.privacy import Private
from digrad.problems import Problem
from digrad.problems.problem import as_floats
from digrad.sampling import EpochPermutations, PoissonSamples, WithReplacement, normal_start
from digrad.types import Average

MOST_STEPS = 10**12  # even a microsecond for each would take days
MOST_ROWS = 10**8  # recorded iterations; each takes about 60 bytes

Start: TypeAlias = npt.ArrayLike | Literal["zeros", "normal"] | Callable[[Problem, int], npt.ArrayLike]
Sampler: TypeAlias = WithReplacement | EpochPermutations | PoissonSamples
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Record:
    """Additional columns to record, and the average at which all columns are measured.

    Args:
        average: Point at which loss and gradient norm are evaluated, and from which consensus error is measured: the
            ``plain`` mean of the agents' estimates, one function for all methods, or the ``weighted`` one that the
            dynamics of the method conserve (by the Perron vector u of R where estimates are pulled, by the weights of
            push-sum methods). Theory is about the second; curves of different methods compare by the first.
        paths: Also record the estimate of every agent (columns ``x[agent][entry]``): n times d numbers per row.
        invariant: Also record by how much the trackers of the method do not sum to its gradients (column
            ``mass_error``), if it has both.
    """

    average: Average = "plain"
    paths: Annotated[bool, checks.flag] = False
    invariant: Annotated[bool, checks.flag] = False

    __post_init__ = checks.fields


def _dtype(value: Any, name: str, owner: str) -> np.dtype[Any]:
    try:
        found = np.dtype(value)
    except TypeError:
        found = None
    if found not in (np.float32, np.float64):
        raise ArgumentError(f"`{name}` of {owner} must be float64 or float32, but got {value!r}.")
    return found


def _sampling(value: Any, name: str, owner: str) -> None:
    if not isinstance(value, Private):
        checks.choice(value, name, owner, ("replacement", "epoch", "saga"))


def _record(value: Any, name: str, owner: str) -> None:
    if not isinstance(value, Record):
        raise ArgumentError(
            f"`{name}` of {owner} must be a Record, as in Record(paths=True), but got {value!r}."
        )


class _Option(NamedTuple):
    """The default of an option, and its check, which may return the value in its one form.

    The start is checked with its problem.
    """

    default: Any
    check: Callable[[Any, str, str], Any] = lambda value, name, owner: None


class SimulatorOptions(TypedDict, total=False):
    """Keywords of :class:`digrad.Simulator`, and of everything that runs one.

    Attributes:
        batch_size: Samples per agent and step; None, the default, uses all of them.
        sampling: ``replacement``; ``epoch`` for a fresh permutation of each agent's samples per epoch; or ``saga``, one
            sample (``batch_size=1``) whose gradient is corrected by a table of the last gradient of every sample, so
            that the noise vanishes at the minimum. Or :class:`digrad.privacy.Private`, which draws samples and makes
            noise so that the data stay private; without ``batch_size`` then.
        seed: Random seed of the samples, of a random start and of all that the network draws, 0 by default; see
            :meth:`digrad.Network.with_seed`.
        gradient_noise: A model of :mod:`digrad.noise`, such as ``StudentT(df=1.5, scale=0.1)``, whose draws are added
            to every gradient; none by default.
        dtype: ``float64``, the default, or ``float32``.
        record_every: Iterations between two recorded rows, 1 by default; the first and the last iteration of a run are
            always recorded.
        record: A :class:`digrad.Record`: at which average of the agents rows are measured, and what else they hold.
    """

    batch_size: Annotated[int | None, _Option(None, checks.optional(checks.count))]
    sampling: Annotated[Literal["replacement", "epoch", "saga"] | Private, _Option("replacement", _sampling)]
    seed: Annotated[int, _Option(0, partial(checks.count, minimum=0))]
    gradient_noise: Annotated[Noise | None, _Option(None, checks.optional(check_noise))]
    dtype: Annotated[npt.DTypeLike, _Option("float64", _dtype)]
    record_every: Annotated[int, _Option(1, checks.count)]
    record: Annotated[Record, _Option(Record(), _record)]


class RunOptions(SimulatorOptions, total=False):
    """Keywords of a run from its start to its end: those of :class:`SimulatorOptions`, and these.

    Attributes:
        steps: Number of steps to take; the only option without a default.
        x0: The start: an array ``[n, d]`` or ``[d]``, ``"zeros"``, ``"normal"`` (standard normal, different for every
            agent), a function of problem and seed that returns an array, or None, the default, for the start of the
            problem (zeros for built-in problems). :func:`digrad.sweep` also takes several by label.
        tolerance: ``converged`` means gradient norm and consensus error of the last row are both at most this; 1e-6 by
            default.
        stop_at_tolerance: End the run at the first recorded iteration that is within ``tolerance``.
    """

    steps: Required[
        Annotated[int, _Option(inspect.Parameter.empty, partial(checks.count, maximum=MOST_STEPS))]
    ]
    x0: Annotated[Start | Mapping[str, Start] | None, _Option(None)]
    tolerance: Annotated[float, _Option(1e-6, checks.positive)]
    stop_at_tolerance: Annotated[bool, _Option(False, checks.flag)]


@cache
def options_of(kind: Any) -> dict[str, _Option]:
    """Return the options of a kind by name, those without a default first."""
    hints = get_type_hints(kind, include_extras=True)
    found = {  # of Required[...], what is inside
        name: getattr(hint, "__metadata__", None) or hint.__args__[0].__metadata__
        for name, hint in hints.items()
    }
    options = {name: metadata[0] for name, metadata in found.items()}
    return dict(sorted(options.items(), key=lambda each: each[1].default is not inspect.Parameter.empty))


def lists_options(kind: Any) -> Callable[[_Function], _Function]:
    """Let ``help`` and completion show the options of a function with ``**options: Unpack[kind]`` one by one."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        explicit = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        listed = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default)
            for name, option in options_of(kind).items()
        ]
        function.__signature__ = signature.replace(parameters=[*explicit, *listed])  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return decorate


def complete(given: Mapping[str, Any], owner: str, kind: Any = RunOptions) -> dict[str, Any]:
    """Return all options of a kind, those that were not given by their defaults, each in its one form.

    Raises:
        ArgumentError: An option is unknown, missing or out of its range; the line names it and ``owner``.
    """
    known = options_of(kind)
    for name in given:
        if name not in known:
            near = checks.did_you_mean(name, known)
            raise ArgumentError(f"{owner} has no option `{name}`; a run takes {', '.join(known)}.{near}")
    values = {name: given.get(name, option.default) for name, option in known.items()}
    for name, value in values.items():
        if value is inspect.Parameter.empty:
            raise ArgumentError(f"`{name}` of {owner} is required, but it is missing.")
    forms = {name: option.check(values[name], name, owner) for name, option in known.items()}
    options = {name: value if forms[name] is None else forms[name] for name, value in values.items()}
    rows = options.get("steps", 0) // options["record_every"]
    if rows > MOST_ROWS:
        raise ArgumentError(
            f"`record_every` of {owner} must be at least {-(-options['steps'] // MOST_ROWS)} for {options['steps']} "
            f"steps, or the recorded rows do not fit in memory, but got {options['record_every']}."
        )
    return options


def labelled(methods: Any, owner: str) -> dict[str, Any]:
    """Return methods, or classes of them, by label; one, or those of a list, are labelled by class."""
    if isinstance(methods, Mapping):
        found = dict(methods)
    else:
        several = methods if isinstance(methods, Sequence) else [methods]
        labels = [one.__name__ if isinstance(one, type) else type(one).__name__ for one in several]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ArgumentError(
                f"`methods` of {owner} holds {twice[0]} more than once; pass a mapping from labels to methods instead."
            )
        found = dict(zip(labels, several, strict=True))
    is_right = all(isinstance(label, str) and hasattr(one, "step") for label, one in found.items())
    if not found or not is_right:
        raise ArgumentError(
            f"`methods` of {owner} must be methods such as CGT(step_size=0.05, threshold=5.0), in a list or a mapping "
            f"from labels, not empty, but got {methods!r}."
        )
    return found


def check_parts(method: Any, problem: Any, network: Any, name: str, owner: str) -> None:
    """Raise unless method, problem and network are what they should be and fit together."""
    check_method(method, owner)
    check_setting(problem, network, owner)
    check_fit(method, network, name)
    if isinstance(network.links, Links):
        check_churn(method, network, name, owner)


def check_setting(problem: Any, network: Any, owner: str) -> None:
    """Raise unless these are the losses and the network of the same agents."""
    if not isinstance(problem, Problem):
        raise ArgumentError(
            f"`problem` of {owner} must be a digrad Problem (see digrad.problems), but got {type(problem).__name__}."
        )
    check_network(network, owner)
    if network.n != problem.n_agents:
        raise ArgumentError(
            f"`network` of {owner} has {network.n} agents, but `problem` has {problem.n_agents} losses; they must "
            "agree."
        )


def make_sampler(problem: Problem, options: Mapping[str, Any]) -> Sampler | None:
    """Return the sampler of a run, or None when every step uses all samples."""
    batch_size, sampling, seed = (options[name] for name in ("batch_size", "sampling", "seed"))
    if isinstance(sampling, Private):
        if batch_size is not None:
            raise ArgumentError(
                f"`batch_size` must be left out with sampling=Private(...), but got {batch_size}."
            )
        return PoissonSamples(_sizes(problem, "sampling", "Private(...)"), sampling.rate, seed)
    if sampling == "saga" and batch_size != 1:
        raise ArgumentError(f"`batch_size` must be 1 with sampling='saga', but got {batch_size}.")
    if batch_size is None:
        return None
    sizes = _sizes(problem, "batch_size", batch_size)
    if sampling != "epoch" and batch_size > max(sizes):
        raise ArgumentError(
            f"`batch_size` is {batch_size}, but no agent has more than {max(sizes)} samples; use at most as "
            "many, or leave it out to use all of them."
        )
    if sampling != "epoch":
        return WithReplacement(sizes, batch_size, seed)
    if batch_size > min(sizes):
        agent = int(np.argmin(sizes))
        raise ArgumentError(
            f"`batch_size` is {batch_size}, but agent {agent} has only {sizes[agent]} samples, fewer than "
            "one batch per epoch; use a smaller batch or sampling='replacement'."
        )
    return EpochPermutations(sizes, batch_size, seed)


def _sizes(problem: Problem, name: str, given: object) -> tuple[int, ...]:
    """Return the samples per agent of a problem whose losses mini-batches estimate."""
    if problem.sizes is None:
        raise ArgumentError(
            f"`{name}` is {given}, but {problem.name} has no samples to draw from; leave it out."
        )
    if not problem.is_estimated_by_batches:
        raise ArgumentError(
            f"`{name}` is {given}, but the loss of {problem.name} is not a mean over the samples of its batch, so "
            f"mini-batches would minimise a different function; take the mean, or leave `{name}` out."
        )
    return problem.sizes


def make_start(x0: Any, problem: Problem, seed: int) -> npt.NDArray[np.float64]:
    """Return the start of every agent, ``[n, d]``."""
    shape = (problem.n_agents, problem.dim)
    if isinstance(x0, str):
        checks.choice(x0, "x0", "a run", ("zeros", "normal"))
        return normal_start(*shape, seed) if x0 == "normal" else np.zeros(shape)
    given: Any = x0(problem, seed) if callable(x0) else x0
    array = as_floats(problem.start if given is None else given, "x0", "a run")
    if array.shape not in (shape, shape[1:]):
        raise ArgumentError(
            f"`x0` must have shape {shape} or {shape[1:]} for {problem.name}, but got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise ArgumentError("`x0` must be finite, but it holds NaN or infinite entries.")
    return np.broadcast_to(array, shape).copy()
