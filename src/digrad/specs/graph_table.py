"""The tables ``[graph]`` and ``[mixing]`` of a specification: the digraph and its weights."""

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from digrad import graphs
from digrad.errors import DigradError, SpecError
from digrad.graphs import Digraph, GraphSequence
from digrad.graphs.parse import NAMED
from digrad.links import Bursts, Clock, FixedDelay, Links, check_links, compressors
from digrad.links.clock import DISTRIBUTIONS
from digrad.network import Network
from digrad.schedules import Geometric
from digrad.specs.messages import Section, check_call, named_value, numbers, refuse, require_choice


def absolute(file: str, info: ValidationInfo) -> str:
    """Return the absolute path of a file; one that a specification names is relative to the specification."""
    base = (info.context or {}).get("base", ".")
    return str((Path(base) / Path(file).expanduser()).absolute())


File = Annotated[str, AfterValidator(absolute)]
Count = Annotated[int, Field(ge=1, lt=2**63)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
# What compressors need.
COMPRESSOR_KEYS = {"top_k": "compressor_k", "random_k": "compressor_k", "quantize": "compressor_bits"}
# The defaults of `Links`, which checks its fields itself.
LINKS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Links)}
IN_TIME = ("split", "random_edges", "edges_seed", "every")  # keys that let the graph change with time


class GraphTable(Section):
    """``[graph]``: the name of a generator with its arguments, or a file; the last four keys let it change with time.

    Args:
        kind: A generator of :mod:`digrad.graphs`, e.g. ``"ring"``; the other keys are its arguments.
        file: A graph file instead of ``kind``: JSON, or text with one ``sender receiver`` pair per line.
        n: Number of agents.
        p: Probability of an edge.
        k: Out-degree.
        rows: Rows of a grid.
        columns: Columns of a grid.
        seed: Random seed of a random graph; 0 by default.
        split: Number of parts that the edges are split into; each iteration uses the next part.
        random_edges: Probability that an edge is used; drawn for every edge and iteration.
        edges_seed: Random seed of these draws; 0 by default.
        every: Local steps: agents exchange messages only at iterations that are multiples of this.
    """

    kind: str | None = None
    file: File | None = None
    n: int | None = None
    p: float | None = None
    k: int | None = None
    rows: int | None = None
    columns: int | None = None
    seed: Seed | None = None
    split: Count | None = None
    random_edges: float | None = None
    edges_seed: Seed | None = None
    every: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> "GraphTable":
        if (self.kind is None) == (self.file is None):
            raise refuse("needs either `kind`, the name of a generator, or `file`, and not both.")
        if self.edges_seed is not None and self.random_edges is None:
            raise refuse("is for `random_edges`, so remove it.", "edges_seed")
        if self.kind is None:
            if self._arguments():
                raise refuse(f"`{next(iter(self._arguments()))}` is for generators, but `file` is given.")
            return self
        require_choice(self.kind, NAMED, "kind")
        check_call(NAMED[self.kind], self._arguments(), self.kind)
        return self

    def _arguments(self) -> dict[str, float]:
        takes_seed = self.kind is not None and "seed" in inspect.signature(NAMED[self.kind]).parameters
        given = self.model_dump(exclude={"kind", "file", *IN_TIME}, exclude_none=True)
        return {"seed": 0, **given} if takes_seed else given

    def build(self) -> Digraph | GraphSequence:
        """Return the digraph, or one per iteration."""
        graph: Any = (
            graphs.read(str(self.file)) if self.kind is None else NAMED[self.kind](**self._arguments())
        )
        if self.split is not None:
            graph = graphs.split(graph, self.split)
        if self.random_edges is not None:
            graph = graphs.random_edges(graph, self.random_edges, seed=self.edges_seed or 0)
        return graph if self.every is None else graphs.every(self.every, graph)


class MixingTable(Section):
    """``[mixing]``: files of comma-separated weights that replace the uniform ones.

    Args:
        R_file: Row-stochastic weights; line i holds the weights that receiver i gives to each sender.
        C_file: Column-stochastic weights.
        W_file: Doubly stochastic weights.
    """

    R_file: File | None = None
    C_file: File | None = None
    W_file: File | None = None

    def build(self, graph: Digraph | GraphSequence, links: Links | None = None) -> Network:
        """Return the network of ``graph`` with these weights and ``links``.

        Raises:
            SpecError: A file cannot be read, or its weights are refused; the message begins with the key.
        """
        matrices: dict[str, Any] = {
            key[0]: _read_matrix(file, key) for key, file in self.model_dump(exclude_none=True).items()
        }
        try:
            check_links(links, graph.n, "Network")
        except DigradError as error:
            raise SpecError(f"`links`: {error}") from error
        try:
            return Network(graph, **matrices, links=links)
        except DigradError as error:
            raise SpecError(f"`{'mixing' if matrices else 'graph'}`: {error}") from error


class LinksTable(Section):
    """``[links]``: what happens to messages on their way; without it they arrive as sent.

    Args:
        loss: Probability that a packet is lost.
        burst_length: Average length of a burst of lost packets, in steps; without it losses are independent.
        delay: Packets are late by 0 to this many steps, at random.
        fixed_delay: Every packet is late by this many steps.
        awake: The probability that an agent acts at a step; a list gives each its own.
        two_way: Lose and delay the packets of both directions between two agents together.
        compressor: ``"bfloat16"``, ``"float16"``, ``"float32"``, ``"sign"``, ``"top_k"``, ``"random_k"`` or
            ``"quantize"``.
        compressor_k: Number of entries that ``top_k`` and ``random_k`` send.
        compressor_bits: Bits per number of ``quantize``.
        damping: Damping factor for compressed push-sum methods; by default the compressor chooses it.
        noise: Standard deviation of the Gaussian noise added to every number sent.
        noise_ratio: The factor by which the noise changes from one step to the next.
        push: ``"sum"``, ``"keep"``, or the naive ``"drop"``, ``"renormalise"``, ``"last"``.
        pull: ``"self"``, ``"last"``, ``"renormalise"``, or the naive ``"drop"``.
        seed: Random seed of losses, delays, sleep and noise.
        compute: Seconds that a gradient takes: one number, a list with one per agent, or random at every step, as in
            ``{distribution = "exponential", mean = 1.0}`` or ``{distribution = "uniform", low = 0.5, high = 1.5}``.
        latency: Seconds that a packet is in transit: one number, a list with one per edge (sorted by receiver, then
            sender), or random as for ``compute``.
        bandwidth: Bytes per second of an edge: one number, or a list with one per edge. Packets do not queue.
        deadline: Longest duration of a step, in seconds; packets that take longer arrive some steps late.
        clock_seed: Random seed of random times.
    """

    loss: float = LINKS["loss"]
    burst_length: float | None = None
    delay: int = LINKS["delay"]
    fixed_delay: Annotated[int, Field(ge=0)] = 0
    awake: Annotated[float | list[float], numbers("agent")] = LINKS["awake"]
    two_way: bool = LINKS["two_way"]
    compressor: Literal["bfloat16", "float16", "float32", "sign", "top_k", "random_k", "quantize"] | None = (
        None
    )
    compressor_k: Count | None = None
    compressor_bits: Count | None = None
    damping: float | None = LINKS["damping"]
    noise: float = LINKS["noise"]
    noise_ratio: float | None = None
    push: str = LINKS["push"]
    pull: str = LINKS["pull"]
    seed: int = LINKS["seed"]
    compute: Annotated[float | list[float] | dict[str, Any] | None, numbers("agent", or_table=True)] = None
    latency: Annotated[float | list[float] | dict[str, Any] | None, numbers("edge", or_table=True)] = None
    bandwidth: Annotated[float | list[float] | None, numbers("edge")] = None
    deadline: float | None = None
    clock_seed: Seed = 0

    @model_validator(mode="after")
    def _check(self) -> "LinksTable":
        for key in ("compute", "latency"):
            _seconds(getattr(self, key), key)
        return self

    def build(self) -> Links | None:
        """Return the links of a network.

        Raises:
            SpecError: A value is out of its range, or two exclude each other.
        """
        # Not what was written: a stored specification writes every key.
        if not self.model_dump(exclude_defaults=True):
            return None
        if self.delay and self.fixed_delay:
            raise SpecError(
                "`links.delay` and `links.fixed_delay` exclude each other; leave one of them out."
            )
        self._check_companions()
        try:
            return Links(
                loss=self.loss if self.burst_length is None else Bursts(self.loss, self.burst_length),
                delay=FixedDelay(self.fixed_delay) if self.fixed_delay else self.delay,
                compressor=self._compressor(),
                noise=self.noise if self.noise_ratio is None else Geometric(self.noise, self.noise_ratio),
                clock=self._clock(),
                **self.model_dump(include={"awake", "two_way", "damping", "push", "pull", "seed"}),
            )
        except DigradError as error:
            raise SpecError(f"`links`: {error}") from error

    def _check_companions(self) -> None:
        """Raise if a key is missing that another one needs, or says more of something that is not there."""
        needed = COMPRESSOR_KEYS.get(self.compressor or "")
        if needed is not None and getattr(self, needed) is None:
            raise SpecError(
                f"`links.{needed}` is required by the compressor {self.compressor}, but it is missing."
            )
        companions = {
            "burst_length": (self.loss, "give loss"),
            "noise_ratio": (self.noise, "give noise"),
            "compressor_k": (needed == "compressor_k", "use the compressor top_k or random_k"),
            "compressor_bits": (needed == "compressor_bits", "use the compressor quantize"),
            "clock_seed": (self._seconds_given(), "give compute or latency"),
        }
        for key, (is_there, what) in companions.items():
            if getattr(self, key) and not is_there:
                raise SpecError(f"`links.{key}`: leave it out, or {what}.")

    def _seconds_given(self) -> dict[str, Any]:
        names = ("compute", "latency", "bandwidth", "deadline")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _clock(self) -> Clock | None:
        given = self._seconds_given()
        if not given:
            return None
        drawn = {name: _seconds(value, name) for name, value in given.items()}
        return Clock(**drawn, seed=self.clock_seed)

    def _compressor(self) -> compressors.Compressor | None:
        if self.compressor is None:
            return None
        key = COMPRESSOR_KEYS.get(self.compressor)
        return getattr(compressors, self.compressor)(*([] if key is None else [getattr(self, key)]))


def _seconds(value: Any, key: str) -> Any:
    """Return seconds as a clock takes them; a table names a distribution."""
    if not isinstance(value, dict):
        return value
    return named_value(value, "distribution", DISTRIBUTIONS, key)


def _read_matrix(file: str, key: str) -> npt.NDArray[np.float64]:
    path = Path(file)
    if not path.exists():
        raise SpecError(f"`mixing.{key}`: {file} does not exist; give a file of comma-separated numbers.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [line for line in lines if line.partition("#")[0].strip()]
        if not rows:
            raise ValueError("it is empty")
        return np.loadtxt(rows, delimiter=",", ndmin=2, dtype=np.float64)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"`mixing.{key}`: {file} is not a file of comma-separated numbers ({error})."
        ) from error
