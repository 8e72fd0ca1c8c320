"""A run as a validated TOML file.

.. code-block:: toml

    name = "five agents"
    steps = 2000
    batch_size = 32                  # per agent and step; leave it out for all samples
    seed = 0                         # of samples, of a random start and of what the network draws
    seeds = 1                        # how many runs, with seeds seed, seed + 1, ...
    start = "normal"                 # or "zeros", a list of numbers, or "model" (engine = "torch")
    record_every = 10

    [graph]
    kind = "random_digraph"          # a generator and its arguments, or file = "graph.json"
    n = 5
    p = 0.3

    [mixing]                         # optional: files of weights instead of uniform ones
    R_file = "R.csv"

    [links]                          # optional: what happens to messages on their way
    compressor = "bfloat16"

    [problem]
    kind = "logistic"                # or quadratic, cosh, quartic, images (engine = "torch"), ...
    data = "digits"
    partition = {scheme = "dirichlet", alpha = 0.5}
    reg_weight = 1e-3
    reg_power = 4

    [methods.CGT]                    # the label is the method, unless method = "..." says otherwise
    step_size = {schedule = "inverse_sqrt", scale = 0.5}
    threshold = 5.0

    [sweep.grid]                     # optional: what `digrad sweep` tries
    step_size = {low = 1e-3, high = 1.0, count = 20}
    threshold = [1.0, 5.0]

Relative paths are relative to the file. A number may not be written as a string, nor a key be unknown.
"""

import os
import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import tomli_w
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from digrad.checks import did_you_mean
from digrad.core.hyperparameters import tables
from digrad.core.validation import check_fit
from digrad.errors import DigradError, SpecError
from digrad.network import Network
from digrad.noise import NOISES, Noise
from digrad.problems import Problem
from digrad.sampling import normal_start
from digrad.simulation.run_options import (
    Record,
    RunOptions,
    check_parts,
    complete,
    make_sampler,
    make_start,
    options_of,
)
from digrad.specs.graph_table import Count, GraphTable, LinksTable, MixingTable
from digrad.specs.messages import Section, dotted, is_number, join, message, named_value, one_line, refuse
from digrad.specs.method_table import MethodTable
from digrad.specs.problem_table import ProblemTable
from digrad.specs.sweep_table import SweepTable
from digrad.types import Average, Method

STARTS = ("zeros", "normal", "model")
# The options of a run and their defaults; `complete` checks them.
OPTIONS = {name: option.default for name, option in options_of(RunOptions).items()}

# A list of numbers that the writer has spread over several lines, one number each.
_NUMBERS = re.compile(r"\[\n((?:\s+[-+0-9.a-z]+,\n)+)\s*\]")


class Built(NamedTuple):
    """Parts of a specification, ready for ``simulate(method, problem, network, **options)``."""

    methods: dict[str, Method]
    problem: Any  # a Problem, or an ImageProblem with engine = "torch"
    network: Network
    options: dict[str, Any]  # of the first seed
    x0: npt.NDArray[np.float64] | None  # where its runs start; None for a model of torch


def _check_start(value: Any) -> Any:
    if value in STARTS:
        return value
    if isinstance(value, list) and value and all(map(is_number, value)):
        return [float(number) for number in value]
    near = did_you_mean(value, STARTS)
    raise refuse(f"must be 'zeros', 'normal', 'model' or a list of numbers, but got {value!r}.{near}")


def _check_noise(value: dict[str, Any] | None) -> dict[str, Any] | None:
    _noise(value)
    return value


def _noise(value: dict[str, Any] | None) -> Noise | None:
    return None if value is None else named_value(value, "distribution", NOISES)


def _name_methods(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if any(not label.strip() for label in value):
        raise refuse("has a label that is empty; name it after its method, as in [methods.CGT].")
    return {
        label: {"method": label, **table} if isinstance(table, dict) else table
        for label, table in value.items()
    }


class Spec(Section):
    """Everything that determines a run; see the module for the file it is read from.

    Args:
        name: Name of the run in reports.
        steps: Steps of each method.
        batch_size: Samples per agent and step; all of them by default.
        seed: Random seed of the samples, of a random start and of random events of the network.
        seeds: Number of runs of each method, with seeds ``seed``, ``seed + 1``, ...
        engine: The engine: ``"simulation"`` (JAX), or ``"torch"`` for a problem of kind ``"images"``.
        start: ``"zeros"``, ``"normal"`` (standard normal, different for every agent), the point ``[d]``, or ``"model"``
            (torch only: as the network is initialised).
        start_scale: Standard deviation of a normal start; with ``"model"``, a factor for the initial weights.
        record_every: Iterations between two recorded rows.
        dtype: ``"float64"`` or ``"float32"``.
        sampling: ``"replacement"``, ``"epoch"``, or ``"saga"`` (not with torch): one sample, corrected by a table.
        gradient_noise: A distribution of :mod:`digrad.noise` whose draws are added to every gradient, as
            ``{distribution = "student_t", df = 1.5, scale = 0.1}``; or ``"gaussian"`` (scale), ``"alpha_stable"``
            (alpha, scale).
        average: Point at which methods are measured: the ``"plain"`` mean of the agents, or the ``"weighted"`` one (by
            the Perron vector of R where estimates are pulled, by their own weights for push-sum methods).
        tolerance: ``converged`` means gradient norm and consensus error are both at most this.
        stop_at_tolerance: End a run as soon as it has converged.
        checkpoint_every: Steps between two checkpoints.
        graph: The communication graph.
        mixing: Weights from files.
        links: Unreliable, slow or compressed links.
        problem: The private losses.
        methods: The methods by label.
        sweep: Values that ``digrad sweep`` tries; ``digrad run`` ignores them.
    """

    name: Annotated[str, Field(min_length=1)]
    engine: Literal["simulation", "torch"] = "simulation"
    steps: int
    batch_size: int | None = OPTIONS["batch_size"]
    seed: int = OPTIONS["seed"]
    seeds: Count = 1
    start: Annotated[str | list[float], PlainValidator(_check_start)] = "zeros"
    start_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    record_every: int = OPTIONS["record_every"]
    dtype: Literal["float64", "float32"] = OPTIONS["dtype"]
    sampling: str = OPTIONS["sampling"]
    gradient_noise: Annotated[dict[str, Any] | None, AfterValidator(_check_noise)] = OPTIONS["gradient_noise"]
    average: Average = OPTIONS["record"].average
    tolerance: float = OPTIONS["tolerance"]
    stop_at_tolerance: bool = OPTIONS["stop_at_tolerance"]
    checkpoint_every: Count = 1000
    graph: GraphTable
    mixing: MixingTable = MixingTable()
    links: LinksTable = LinksTable()
    problem: ProblemTable
    methods: Annotated[dict[str, MethodTable], BeforeValidator(_name_methods), Field(min_length=1)]
    sweep: SweepTable | None = None

    _source: str = PrivateAttr("specification")

    @model_validator(mode="after")
    def _check_engine(self) -> "Spec":
        kind = self.problem.kind
        if self.engine == "torch":
            if kind != "images":
                raise refuse(f"'torch' trains problems of kind 'images', but the kind is {kind!r}.", "engine")
            needs = {
                "batch_size": (self.batch_size is not None, "must be given"),
                "gradient_noise": (self.gradient_noise is None, "must be left out"),
                "sampling": (self.sampling != "saga", "must be 'replacement' or 'epoch'"),
                "start": (self.start == "model", "must be 'model'"),
                "dtype": (self.dtype == "float32", "must be 'float32'"),
            }
            for key, (is_met, need) in needs.items():
                if not is_met:
                    raise refuse(f"{need} with engine = 'torch', but got {getattr(self, key)!r}.", key)
        elif kind == "images":
            raise refuse("must be 'torch' for a problem of kind 'images'.", "engine")
        elif self.start == "model":
            raise refuse(
                "must be 'zeros', 'normal' or a list of numbers: 'model' is for engine = 'torch'.", "start"
            )
        return self

    def __eq__(self, other: object) -> bool:
        """Return whether the other describes the same run, wherever it was read from."""
        return isinstance(other, Spec) and self.model_dump() == other.model_dump()

    def to_toml(self) -> str:
        """Return the text of a file that :func:`parse_spec` reads as an equal specification."""
        tables = self.model_dump(exclude_none=True)
        text = tomli_w.dumps({key: value for key, value in tables.items() if value != {}})
        return _NUMBERS.sub(lambda found: "[" + ", ".join(found[1].replace(",", " ").split()) + "]", text)

    def build(self) -> Built:
        """Build everything, so that what can be wrong is found before the first step.

        Raises:
            SpecError: A part is refused; the line names the key and keeps the reason.
        """
        graph = self.at("graph", self.graph.build)
        network = self.at("", lambda: self.mixing.build(graph, self.links.build()))
        problem = self.at("problem", lambda: self.problem.build(network.n))
        return self.build_on(problem, network)

    def build_on(self, problem: Problem, network: Network) -> Built:
        """Build the rest, as :meth:`build`, on a problem and a network that exist already."""
        options = self.at("", self._options)
        x0 = (
            None
            if self.start == "model"
            else self.at("", lambda: make_start(options["x0"], problem, self.seed))
        )
        methods = {label: table.build() for label, table in self.methods.items()}
        for label, method in methods.items():
            self.at(dotted(["methods", label]), partial(self._check_method, label, method, problem, network))
        self.at("", lambda: make_sampler(problem, options))
        return Built(methods, problem, network, options, x0)

    def _check_method(self, label: str, method: Method, problem: Problem, network: Network) -> None:
        if self.engine == "torch":
            check_fit(method, network, label)
        else:
            check_parts(method, problem, network, label, self.name)
        # Schedules of a specification are monotone, so that their ends show whether a value is out of range.
        for k in sorted({0, self.steps - 1}):
            tables(method, label, range(k, k + 1), 1, self.dtype)

    def _options(self) -> dict[str, Any]:
        given = {name: value for name, value in self if name in OPTIONS}
        given |= {"record": Record(average=self.average), "gradient_noise": _noise(self.gradient_noise)}
        return complete({**given, "x0": self.start_of(self.start)}, self.name)

    def start_of(self, name: Any) -> Any:
        """Return a start, ``"zeros"``, ``"normal"`` or a point, as runs take it: normal ones differ by seed."""
        is_scaled = name == "normal" and self.start_scale != 1.0
        return partial(_scaled_normal, self.start_scale) if is_scaled else name

    def at(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` gives; what it refuses becomes a line that names this file and the key.

        Raises:
            SpecError: ``make`` raised an error of digrad.
        """
        try:
            return make()
        except DigradError as error:
            if isinstance(error, SpecError) and str(error).startswith(f"{self._source}: "):
                raise
            raise self.refusal(key, str(error)) from error

    def refusal(self, key: str, reason: str) -> SpecError:
        """Return an error whose line names this file, the key and what is wrong with it."""
        return SpecError(f"{self._source}: {join(key, one_line(reason))}")


def _scaled_normal(scale: float, problem: Problem, seed: int) -> npt.NDArray[np.float64]:
    return scale * normal_start(problem.n_agents, problem.dim, seed)


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """Read a specification from a TOML file.

    Raises:
        SpecError: The file cannot be read or is not valid: one line with the file, the key, what is required,
            what came, and the nearest valid key or value.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a UTF-8 text file"
        raise SpecError(f"{path}: cannot be read ({reason}); give the path of a TOML file.") from error
    return parse_spec(text, str(path), base=path.parent)


def parse_spec(text: str, source: str = "specification", *, base: str | os.PathLike[str] = ".") -> Spec:
    """Return the specification that ``text`` describes.

    Args:
        text: TOML.
        source: Its name in messages.
        base: The folder that relative paths start from.

    Raises:
        SpecError: As in :func:`load_spec`.

    Example:
        >>> spec = parse_spec('''
        ... name = "tiny"
        ... steps = 100
        ... graph = {kind = "example5"}
        ... problem = {kind = "example_quadratic"}
        ... methods.CGT = {step_size = 0.05, threshold = 5.0}
        ... ''')
        >>> spec.build().methods
        {'CGT': CGT(step_size=0.05, threshold=5.0)}
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{source}: not valid TOML: {one_line(str(error))}.") from error
    try:
        spec = Spec.model_validate(content, context={"base": base})
    except ValidationError as error:
        raise SpecError(f"{source}: {message(error, content)}") from error
    spec._source = source
    return spec
