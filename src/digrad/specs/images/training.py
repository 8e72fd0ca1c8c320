"""Training of all agents in this process, recorded as a trace, resumable bit for bit."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from digrad._internal.user_warnings import warn_user
from digrad.arrays import row_norm
from digrad.core.divergence import far_away
from digrad.errors import CheckpointError, NonFiniteError
from digrad.network import Network
from digrad.sampling import EpochPermutations, WithReplacement
from digrad.simulation import Progress
from digrad.simulation.checkpoint import difference
from digrad.specs.images.problem import Evaluation, ImageProblem
from digrad.torch.batch_norm import recalibrate
from digrad.torch.checkpoint.checkpoint_files import read_tensors, write_file
from digrad.torch.checkpoint.serialization import decode_links, encode_links
from digrad.torch.replicas import Replicas
from digrad.trace import Trace
from digrad.types import Average

RECALIBRATION = 1000  # training images from which BatchNorm of the average model takes its statistics


@dataclass(frozen=True)
class TrainingPlan:
    """Settings of a training, and what it records.

    Args:
        steps: Steps of the method.
        batch_size: Images per agent and step.
        seed: Random seed of the start, the mini-batches and their crops, and of all that the network draws.
        record_every: Steps between two recorded rows.
        evaluate: Training and test images, as many of either, that a row is computed from.
        evaluate_last: The same for the last evaluation, of the average and of every agent.
        start_scale: Multiplies the weights of the start.
        sampling: ``epoch`` or ``replacement``.
        average: The average of the agents that rows are about, ``plain`` or ``weighted``; see :func:`digrad.simulate`.
        checkpoint: The file to go on from, if it is there, and to write to.
        checkpoint_every: Steps between two writes.
    """

    steps: int
    batch_size: int
    seed: int = 0
    record_every: int = 100
    evaluate: int = 2000
    evaluate_last: int = 10_000
    start_scale: float = 1.0
    sampling: str = "epoch"
    average: Average = "plain"
    checkpoint: Path | None = None
    checkpoint_every: int = 100

    @classmethod
    def of(cls, spec: Any, seed: int, checkpoint: Path | None = None) -> "TrainingPlan":
        """Return the plan of a specification of engine ``torch``: its keys of these names."""
        keys = {**dict(spec), **dict(spec.problem), "seed": seed, "checkpoint": checkpoint}
        return cls(**{field.name: keys[field.name] for field in dataclasses.fields(cls)})


def train(
    method: Any,
    problem: ImageProblem,
    network: Network,
    plan: TrainingPlan,
    *,
    name: str | None = None,
    callback: Callable[[Progress], None] | None = None,
) -> Trace:
    """Train the agents of ``network`` and return what was recorded.

    The rows are about the average of the agents that the plan names: ``loss`` and
    ``train_accuracy`` on training images, ``test_loss`` and ``test_accuracy`` on test images, with the statistics of
    BatchNorm taken anew from training images. What belongs to steps is a mean over the steps since the row before:
    ``batch_loss`` (of the agents' mini-batches) and ``fraction_clipped``; ``tracker_norm`` is the largest norm of a
    tracker among them. ``grad_norm`` is the norm of the mean of the last mini-batch gradients. Where packets
    may be lost or late there are the columns of :meth:`~digrad.torch.Replicas.link_metrics` too.

    Args:
        method: Any method of :mod:`digrad.methods`.
        problem: The network and the images.
        network: Graph and weights.
        plan: How long, and what to record.
        name: Name of the trace; by default that of the method.
        callback: Called after every row.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another run.
    """
    training = Training(method, problem, network, plan, name or type(method).__name__)
    training.resume()
    while not training.is_done:
        training.step()
        if training.is_row and callback:
            callback(training.progress())
        training.write_checkpoint()
    return training.trace()


def facts_of_training(
    method: Any, problem: ImageProblem, network: Network, plan: TrainingPlan
) -> dict[str, Any]:
    """Return the facts by which the trace of such a training is known again, without training.

    Args:
        method: The method.
        problem: The network and the images.
        network: Graph and weights, as a run with the seed of the plan meets them.
        plan: How long, and what to record.
    """
    fields = dataclasses.asdict(plan)
    return {
        **{key: fields[key] for key in fields if key not in ("checkpoint", "checkpoint_every", "steps")},
        "method": repr(method),
        "problem": problem.name,
        "problem_hash": problem.content_hash,
        "network_hash": network.content_hash,
    }


class Training:
    """One run under way; see :func:`train`."""

    def __init__(
        self, method: Any, problem: ImageProblem, network: Network, plan: TrainingPlan, name: str
    ) -> None:
        self.name, self.method, self.problem, self.plan = name, method, problem, plan
        self.network = network = network.with_seed(plan.seed)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        start = problem.start(plan.seed, plan.start_scale).to(self._device)
        self.replicas = Replicas(start, method, network)
        x0 = self.replicas.estimate()
        self._limit = far_away(float(x0.abs().max()), torch.finfo(x0.dtype).max)
        sampler = EpochPermutations if plan.sampling == "epoch" else WithReplacement
        self._sampler = sampler(problem.sizes, plan.batch_size, plan.seed)
        self._train_part = problem.training_part(plan.evaluate)
        self._test_part = problem.test_part(plan.evaluate)
        self._rows: dict[str, list[float]] = {}
        self._since = _Since()
        self._bytes_before = 0
        self._seconds_before, self._began = 0.0, time.perf_counter()
        self._spent = _Spent()
        self.diverged_at: int | None = None
        self.k = 0

    @property
    def seconds(self) -> float:
        """Time spent, also before a resume."""
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def is_done(self) -> bool:
        """Return whether there is nothing left to do."""
        return self.diverged_at is not None or self.k >= self.plan.steps

    @property
    def is_row(self) -> bool:
        """Return whether the current iteration has been recorded."""
        return bool(self._rows) and self._rows["k"][-1] == self.k

    def step(self) -> None:
        """Take one step, and record a row if it is time for one."""
        if not self._rows:
            self._record()
        with self._spent:
            self._advance()
        if self.diverged_at is not None:
            self._append_nothing()
        elif self.k % self.plan.record_every == 0 or self.k == self.plan.steps:
            self._record()

    def _advance(self) -> None:
        loss = self._backward()
        self.k += 1
        try:
            self.replicas.step()
        except NonFiniteError:
            self.diverged_at = self.k
            return
        self._since.add(loss, self._clipped(), self._tracker_norm())
        if not self._is_within_limit():
            self.diverged_at = self.k

    def _is_within_limit(self) -> bool:
        x = self.replicas.estimate()
        largest = float(x.abs().max())
        self._limit = self._limit or far_away(largest, torch.finfo(x.dtype).max)  # of a start at zero
        return largest <= self._limit

    def _backward(self) -> float:
        self.replicas.zero_grad()
        rows = self._sampler.batches(self.k, 1)[0]
        total = 0.0
        for agent, model in enumerate(self.replicas.models):
            images, labels = self.problem.batch(agent, rows[agent], self.plan.seed, self.k)
            loss = torch.nn.functional.cross_entropy(model(images.to(self._device)), labels.to(self._device))
            loss.backward()
            total += loss.item()
        return total / len(self.replicas.models)

    def _clipped(self) -> float:
        """Return the share of agents that clipped in the last step; NaN for methods that do not, or ask all agents."""
        ratios = self.replicas.clip_ratios()
        return math.nan if ratios is None else float((ratios > 1).double().mean())

    def _tracker_norm(self) -> float:
        fields = self.replicas.state_fields
        return float(row_norm(fields.y).max()) if "y" in fields._fields else math.nan

    def _record(self) -> None:
        loss, accuracy, test_loss, test_accuracy = self._measure_average(self._train_part, self._test_part)
        gradient = float(self.replicas.gradients.mean(0).norm()) if self.k else math.nan
        self._append(
            loss=loss,
            train_accuracy=accuracy,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            grad_norm=gradient,
            consensus_error=self.replicas.consensus_error(self.plan.average),
        )

    def _append(self, **values: float) -> None:
        row = {
            "k": self.k,
            "bytes_sent": self._bytes_before + self.replicas.bytes_sent,
            "epoch": self.k * self.plan.batch_size * self.problem.n_agents / sum(self.problem.sizes),
            **self._since.take(),
            **self.replicas.link_metrics(),
            **values,
        }
        for column, value in row.items():
            self._rows.setdefault(column, []).append(value)

    def _append_nothing(self) -> None:
        """Record the row of the first iterate that is not finite, or too large."""
        endless = dict.fromkeys(("loss", "test_loss", "grad_norm", "consensus_error"), math.inf)
        self._append(**endless, train_accuracy=math.nan, test_accuracy=math.nan)

    def _measure_average(self, *parts: Evaluation) -> list[float]:
        """Return loss and accuracy of the average of all agents on each part."""
        model = self.replicas.models[0]
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with self.replicas.averaged_parameters(self.plan.average):
            if kept:
                part = self.problem.training_part(RECALIBRATION)
                recalibrate(model, (images.to(self._device) for images, _ in part.batches()))
            measured = [value for part in parts for value in part.measure(model)]
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        return measured

    def progress(self) -> Progress:
        """Return where the run is."""
        last = {column: values[-1] for column, values in self._rows.items()}
        names = ("loss", "grad_norm", "consensus_error", "test_accuracy")
        return Progress(name=self.name, k=self.k, steps=self.plan.steps, **{n: last[n] for n in names})

    def trace(self) -> Trace:
        """Return what was recorded, after a last evaluation on more images."""
        counts = ("k", "bytes_sent")
        columns = {
            column: np.array(values, np.int64 if column in counts else np.float64)
            for column, values in self._rows.items()
        }
        return Trace(
            name=self.name,
            columns=columns,
            final_x=self.replicas.estimate().cpu().numpy(),
            verdict="not converged" if self.diverged_at is None else "diverged",
            diverged_at=self.diverged_at,
            steps=self.k,
            seconds=self.seconds,
            facts={
                **self._fingerprint(),
                **({} if (slowest := self.replicas.slowest()) is None else {"slowest": slowest}),
                "last": self._last_evaluation(),
                "training_seconds": self._spent.wall,
                "training_cpu_seconds": self._spent.cpu,
            },
        )

    def _last_evaluation(self) -> dict[str, Any] | None:
        if self.diverged_at is not None:
            return None
        count = self.plan.evaluate_last
        train_part, test_part = self.problem.training_part(count), self.problem.test_part(count)
        loss, accuracy, test_loss, test_accuracy = self._measure_average(train_part, test_part)
        agents = [test_part.measure(model)[1] for model in self.replicas.models]
        return {
            "train_loss": loss,
            "train_accuracy": accuracy,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "test_accuracy_of_agents": agents,
            "train_images": len(train_part.indices),
            "test_images": len(test_part.indices),
        }

    def _fingerprint(self) -> dict[str, Any]:
        return {
            **facts_of_training(self.method, self.problem, self.network, self.plan),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }

    def write_checkpoint(self) -> None:
        """Write everything that the rest of the run depends on, if it is time to."""
        path = self.plan.checkpoint
        if path is None or self.is_done or self.k % self.plan.checkpoint_every:
            return
        state = self.replicas.state_dict()["state"]
        tensors = {f"field/{name}": value for name, value in state["fields"].items()}
        for agent, model in enumerate(self.replicas.models):
            tensors |= {f"buffer/{agent}/{name}": buffer for name, buffer in model.named_buffers()}
        tensors |= {
            f"column/{name}": torch.tensor(values, dtype=torch.float64) for name, values in self._rows.items()
        }
        header = {
            "k": self.k,
            "seconds": self.seconds,
            "spent": dataclasses.asdict(self._spent),
            "bytes_sent": self._bytes_before + self.replicas.bytes_sent,
            "since": dataclasses.asdict(self._since),
            "fingerprint": self._fingerprint(),
            "links": encode_links(state.get("links", {}), tensors),
        }
        stored = {name: value.cpu().contiguous() for name, value in tensors.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, stored, {"digrad": json.dumps(header)})
        except (OSError, SafetensorError) as error:  # hours of work are worth more than the file
            warn_user(
                f"{self.name} goes on without a checkpoint at k = {self.k}: {path} cannot be written ({error})"
            )

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one.

        Raises:
            CheckpointError: It is damaged or belongs to another run.
        """
        path = self.plan.checkpoint
        if path is None or not path.is_file():
            return
        tensors, header = read_tensors(path, "; delete it, or run without --resume.")
        differing = difference(header["fingerprint"], json.loads(json.dumps(self._fingerprint())))
        if differing:
            raise CheckpointError(f"`{path}` belongs to another run ({differing}); run without --resume.")
        self._restore(tensors, header)

    def _restore(self, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> None:
        template = self.replicas.state_dict()
        template["state"] |= {
            "k": header["k"],
            "fields": _part(tensors, "field/"),
            "links": decode_links(header["links"], tensors),
        }
        sent = self.replicas.bytes_sent
        self.replicas.load_state_dict(template)
        for agent, model in enumerate(self.replicas.models):
            for name, buffer in model.named_buffers():
                buffer.copy_(tensors[f"buffer/{agent}/{name}"])
        self._rows = {name: values.tolist() for name, values in _part(tensors, "column/").items()}
        self._since = _Since(**header["since"])
        self.k, self._seconds_before = header["k"], header["seconds"]
        self._spent = _Spent(**header["spent"])
        self._bytes_before = header["bytes_sent"] - sent


def _part(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@dataclass
class _Spent:
    """Seconds spent inside the context, by the clock and of a processor."""

    wall: float = 0.0
    cpu: float = 0.0

    def __enter__(self) -> None:
        self.wall -= time.perf_counter()
        self.cpu -= time.process_time()

    def __exit__(self, *error: object) -> None:
        self.wall += time.perf_counter()
        self.cpu += time.process_time()


@dataclass
class _Since:
    """Sums since the row before."""

    steps: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    tracker_norm: float = 0.0

    def add(self, loss: float, clipped: float, tracker_norm: float) -> None:
        self.steps += 1
        self.loss += loss
        self.clipped += clipped
        self.tracker_norm = max(self.tracker_norm, tracker_norm) if self.steps > 1 else tracker_norm

    def take(self) -> dict[str, float]:
        mean = {"batch_loss": self.loss, "fraction_clipped": self.clipped}
        row = {name: value / self.steps if self.steps else math.nan for name, value in mean.items()}
        row["tracker_norm"] = self.tracker_norm if self.steps else math.nan
        self.steps, self.loss, self.clipped, self.tracker_norm = 0, 0.0, 0.0, 0.0
        return row
