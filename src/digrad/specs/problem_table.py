"""The table ``[problem]`` of a specification: the private losses of the agents, and how samples are partitioned.

This module does not load torch: a specification of images is checked without it.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    model_validator,
)

from digrad import data, problems
from digrad._internal import plugins
from digrad.data import Dataset
from digrad.data.known_datasets import KNOWN
from digrad.data.partition import SCHEMES
from digrad.errors import DataError, DigradError, PluginError
from digrad.problems import Problem
from digrad.sampling import HELD_OUT
from digrad.specs.graph_table import Count, File, Seed, absolute
from digrad.specs.messages import Section, check_call, is_number, numbers, refuse, require_choice

if TYPE_CHECKING:
    from digrad.specs.images.problem import ImageProblem

_LARGEST_STATE = 2**31  # numbers, one per agent and feature: 17 GB for each of several copies


PerAgent: TypeAlias = Annotated[float | list[float], numbers("agent")]


def _data_source(data: str, info: ValidationInfo) -> str:
    file = absolute(data, info)
    return file if data not in KNOWN and Path(file).is_file() else data


def _agent_weights(value: Any) -> Any:
    if value == "samples" or (isinstance(value, list) and value and all(map(is_number, value))):
        return value
    raise refuse(f"must be 'samples', or a list with one number per agent, but got {value!r}.")


class PartitionTable(Section):
    """``[problem.partition]``: how samples are partitioned; only a string when a scheme needs no arguments.

    Args:
        scheme: ``iid``, ``stratified``, ``sorted``, ``shards`` or ``dirichlet``.
        alpha: Concentration of ``dirichlet``.
        shards_per_agent: Shards per agent of ``shards``.
        seed: Random seed of the random schemes.
    """

    scheme: str
    alpha: float | None = None
    shards_per_agent: int | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _check(self) -> "PartitionTable":
        require_choice(self.scheme, SCHEMES, "scheme")
        return self


def as_partition(value: Any) -> Any:
    """Return the table that a value stands for: the name of a scheme is one without arguments."""
    return {"scheme": value} if isinstance(value, str) else value


class LogisticTable(Section):
    """``kind = "logistic"``: see :func:`digrad.problems.logistic`.

    Args:
        kind: ``"logistic"``.
        data: The name of a data set (``digrad data list``), or a LIBSVM file.
        partition: A scheme, or the table below.
        reg_weight: lambda, a number or one per agent.
        reg_power: p, a number or one per agent, at least 2.
        agent_weights: How much each agent counts: ``"samples"``, or one number per agent; one vote each by default.
        held_out: Share of samples that no agent trains on; ``digrad tune`` and ``digrad sweep`` compare losses on them.
    """

    kind: Literal["logistic"]
    data: Annotated[str, AfterValidator(_data_source)]
    partition: Annotated[PartitionTable, BeforeValidator(as_partition)] = PartitionTable(scheme="sorted")
    reg_weight: PerAgent = 0.0
    reg_power: PerAgent = 2.0
    agent_weights: Annotated[str | list[float] | None, PlainValidator(_agent_weights)] = None
    held_out: Annotated[float, Field(gt=0, lt=1)] | None = None

    def build(self, agents: int) -> Problem:
        """Load and partition the data, and return the problem."""
        dataset, _ = self._parts()
        if agents * dataset.dim > _LARGEST_STATE:
            raise DataError(
                f"{dataset.name} has {dataset.dim} features, so that the states of {agents} agents alone would take "
                f"{8 * agents * dataset.dim / 1e9:.3g} GB; check its largest index, or leave out features."
            )
        options = self.partition.model_dump(exclude_none=True)
        split = data.partition(data.binary_labels(dataset), agents, **options)
        return problems.logistic(
            data=dataset,
            agents=agents,
            partition=split,
            reg_weight=self.reg_weight,
            reg_power=self.reg_power,
            agent_weights=self.agent_weights,
        )

    def build_held_out(self) -> Problem | None:
        """Return the loss on the samples that were set aside, without the regulariser."""
        rest = self._parts()[1]
        return None if rest is None else problems.logistic(data=rest, agents=1, partition="iid")

    def _parts(self) -> tuple[Dataset, Dataset | None]:
        dataset = data.load(self.data)
        return (dataset, None) if self.held_out is None else dataset.split(self.held_out, seed=0)


class ImagesTable(Section):
    """``kind = "images"``: each agent's loss is the mean cross entropy of a network over its images.

    Args:
        kind: ``"images"``.
        data: ``"cifar10"``.
        folder: Folder with the CIFAR-10 files; by default it is searched for, see :func:`digrad.data.cifar10`.
        model: ``"small_cnn"``, ``"resnet20"`` or ``"resnet18"``.
        norm: ``"batch"``, ``"group"`` or ``"none"``.
        partition: How images are partitioned among agents.
        augment: Shift and mirror training images at random.
        samples: Number of images to train on; all of them by default.
        held_out: Number of training images to hold out; accuracy is then measured on them, never on test images.
        held_out_seed: Random seed that selects the held-out images.
        evaluate: Number of training images, and of test images, on which each recorded row is evaluated.
        evaluate_last: The same for the last row.
    """

    kind: Literal["images"]
    data: Literal["cifar10"] = "cifar10"
    folder: File | None = None
    model: Literal["small_cnn", "resnet20", "resnet18"] = "small_cnn"
    norm: Literal["batch", "group", "none"] = "batch"
    partition: Annotated[PartitionTable, BeforeValidator(as_partition)] = PartitionTable(scheme="iid")
    augment: bool = True
    samples: Count | None = None
    held_out: Annotated[int, Field(ge=0)] = 0
    held_out_seed: Seed = 0
    evaluate: Count = 2000
    evaluate_last: Count = 10_000

    def build(self, agents: int) -> "ImageProblem":
        """Find and partition the images, and return the problem."""
        from digrad.torch.launch import require_torch

        require_torch("a problem of kind 'images'")
        from digrad.specs.images.problem import ImageProblem

        images = data.cifar10(self.folder)
        chosen, held_out = self._split(len(images))
        test_images = images if self.held_out else data.cifar10(self.folder, train=False)
        options = self.partition.model_dump(exclude_none=True)
        return ImageProblem(
            model=self.model,
            norm=self.norm,
            images=images,
            chosen=chosen,
            partition=data.partition(images.labels[chosen], agents, **options),
            test_images=test_images,
            test_chosen=held_out if self.held_out else np.arange(len(test_images)),
            augment=self.augment,
        )

    def _split(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        wanted = (count - self.held_out if self.samples is None else self.samples) + self.held_out
        if not self.held_out < wanted <= count:
            raise DataError(
                f"`samples` and `held_out` must be at most {count} together, and leave some to train on, but are "
                f"{self.samples} and {self.held_out}."
            )
        # Without either, all images in the order of their files.
        if wanted == count and not self.held_out:
            return np.arange(count), np.arange(0)
        generator = np.random.Generator(
            np.random.Philox(key=np.array([self.held_out_seed, HELD_OUT], np.uint64))
        )
        order = generator.permutation(count)
        return np.sort(order[self.held_out : wanted]), np.sort(order[: self.held_out])


LOSSES: dict[str, Callable[..., Problem]] = {
    "quadratic": problems.quadratic,
    "cosh": problems.cosh,
    "quartic": problems.quartic,
    "example_quadratic": problems.example_quadratic,
    "example_quartic": problems.example_quartic,
}


class LossTable(Section):
    """``kind`` of a loss in closed form, or of one's own; see :mod:`digrad._internal.plugins`.

    Args:
        kind: The name of a loss in closed form; or a function of your own, ``"file.py:make"`` or the name of an entry
            point of ``digrad.problems``, which is also given ``agents`` and returns a :class:`Problem`. The other keys
            are the arguments of the function.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    kind: str

    @model_validator(mode="after")
    def _check(self) -> "LossTable":
        if self.kind in LOSSES:
            arguments = self.model_extra or {}
            check_call(LOSSES[self.kind], arguments, self.kind)
            for key, value in arguments.items():
                if not _are_numbers(value):
                    raise refuse(f"must be a number, or lists of numbers, but got {value!r}.", key)
        return self

    def build(self, agents: int) -> Problem:
        """Return the problem; a function that is not built in also gets the number of agents."""
        arguments = self.model_extra or {}
        if self.kind in LOSSES:
            return LOSSES[self.kind](**arguments)
        in_file = plugins.is_in_file(self.kind)
        make = plugins.load_from_file(self.kind) if in_file else plugins.load(plugins.PROBLEMS, self.kind)
        try:
            inspect.signature(make).bind(agents=agents, **arguments)
        except TypeError as error:
            raise PluginError(
                f"`problem` of kind {self.kind!r} does not fit its function: {error}."
            ) from error
        try:
            problem = make(agents=agents, **arguments)
        except DigradError:
            raise
        except Exception as error:  # whatever the function does
            raise PluginError(
                f"`problem` of kind {self.kind!r} failed: {type(error).__name__}: {error}."
            ) from error
        if not isinstance(problem, Problem):
            kind = type(problem).__name__
            raise PluginError(
                f"`problem` of kind {self.kind!r} must return a Problem, but it returns a {kind}."
            )
        return problem

    def build_held_out(self) -> None:
        """Return None: there are no samples."""


def _are_numbers(value: Any) -> bool:
    return all(map(_are_numbers, value)) if isinstance(value, list) else is_number(value)


KINDS = ("logistic", "images", *LOSSES)


def _check_kind(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, dict):
        kind = value.get("kind")
        if plugins.is_in_file(kind):
            return {**value, "kind": absolute(str(kind), info)}
        require_choice(kind, [*KINDS, *plugins.installed(plugins.PROBLEMS)], "kind")
        if kind in KINDS:
            plugins.warn_if_announced(plugins.PROBLEMS, kind)
    return value


def _alternative(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", "")
    return kind if kind in ("logistic", "images") else "loss"


ProblemTable: TypeAlias = Annotated[
    Annotated[LogisticTable, Tag("logistic")]
    | Annotated[ImagesTable, Tag("images")]
    | Annotated[LossTable, Tag("loss")],
    Discriminator(_alternative),
    BeforeValidator(_check_kind),
]
