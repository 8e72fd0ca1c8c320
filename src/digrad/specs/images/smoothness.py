"""``digrad smoothness`` of engine ``torch``: gradient and Hessian norms of a network along its training."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from digrad.network import Network
from digrad.simulation import Progress
from digrad.specs.images.problem import Evaluation, ImageProblem
from digrad.specs.images.training import Training, TrainingPlan
from digrad.specs.runner import Observer
from digrad.specs.spec import Built, Spec
from digrad.theory import EmpiricalSmoothness

POINTS = 16  # of the training: each takes Hessian-vector products of six losses
ROUNDS = 8  # of the power method at a point; it goes on from the vectors of the point before
IMAGES = 60  # of each agent, on which its loss is measured

Parts = list[torch.Tensor]


def smoothness_of_training(
    spec: Spec, built: Built, label: str, progress: Observer | None
) -> tuple[npt.NDArray[np.int64], EmpiricalSmoothness]:
    """Train the method ``label`` of a specification and measure Hessian norm against gradient norm on the way.

    Returns:
        The iterations measured at, and what was found there.
    """
    plan = TrainingPlan.of(spec, spec.seed)
    # Most of the change is at the beginning: points equally spaced on a logarithmic scale.
    points = np.unique(np.geomspace(1, spec.steps + 1, min(POINTS, spec.steps + 1)).astype(int) - 1)
    began = time.monotonic()

    def tell(k: int, loss: float) -> None:
        left = (spec.steps - k) * (time.monotonic() - began) / k
        if progress:
            progress.on_progress(Progress(label, k, spec.steps, loss, seconds_left=left))

    if progress:
        progress.on_method_start(label, spec.steps)
    return curvature_along(
        built.methods[label], built.problem, built.network, plan, points=points.tolist(), on_step=tell
    )


def curvature_along(
    method: Any,
    problem: ImageProblem,
    network: Network,
    plan: TrainingPlan,
    *,
    points: Sequence[int],
    images: int = IMAGES,
    rounds: int = ROUNDS,
    on_step: Callable[[int, float], None] | None = None,
) -> tuple[npt.NDArray[np.int64], EmpiricalSmoothness]:
    """Train, and at some iterations measure gradient and Hessian norms of all losses at the average of the plan.

    A loss is the mean cross entropy over the first ``images`` images of its agent, as they are; F is their mean. The
    Hessian norm is the length of H v after ``rounds`` rounds of the power method on Hessian-vector products, which is a
    lower bound.

    Args:
        method: Any method.
        problem: The network and the images.
        network: Graph and weights.
        plan: Plan of the training, which ends at the last point.
        points: Increasing iterations to measure at.
        images: Images of each agent.
        rounds: Rounds of the power method.
        on_step: Called after each step with its k, and F at the last point.

    Returns:
        The iterations measured at, and the norms there; those of Hessians from below.
    """
    training = Training(method, problem, network, plan, type(method).__name__)
    parts = [Evaluation(problem.images, problem.chosen[part[:images]]) for part in problem.partition.indices]
    power = _Power(training, parts, plan.seed, rounds)
    rows, reached = [], []
    for point in points:
        while training.k < point and not training.is_done:
            training.step()
            if on_step:
                on_step(training.k, rows[-1][0] if rows else math.nan)
        if training.diverged_at is not None:
            break
        rows.append(power.measure())
        reached.append(training.k)
    losses, *columns = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    return np.array(reached, np.int64), EmpiricalSmoothness(*columns, lower_bound=float(losses.min()))


class _Power:
    """The power method on the Hessians of the agents' losses and of their mean."""

    def __init__(self, training: Training, parts: Sequence[Evaluation], seed: int, rounds: int) -> None:
        self._replicas, self._parts, self._rounds = training.replicas, parts, rounds
        self._plan = training.plan
        self._parameters = [p for p in self._replicas.models[0].parameters() if p.requires_grad]
        generator = torch.Generator().manual_seed(seed)
        shapes = [parameter.shape for parameter in self._parameters]
        starts = (
            [torch.randn(shape, generator=generator) for shape in shapes] for _ in range(len(parts) + 1)
        )
        device = self._parameters[0].device
        self._vectors: list[Parts] = [_unit([part.to(device) for part in start])[0] for start in starts]

    def measure(self) -> tuple[Any, ...]:
        """Return loss, gradient and Hessian norms at the current average."""
        model = self._replicas.models[0]
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with self._replicas.averaged_parameters(self._plan.average):
            losses, gradients = zip(*self._gradients(model), strict=True)
            count = len(gradients)
            mean = [torch.stack(part).mean(0).detach() for part in zip(*gradients, strict=True)]
            hessians = [self._norm(place, [gradient]) for place, gradient in enumerate(gradients)]
            hessian_of_mean = self._norm(count, gradients)
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        plain = [[part.detach() for part in gradient] for gradient in gradients]
        spread = [_length([a - b for a, b in zip(gradient, mean, strict=True)]) for gradient in plain]
        norms = [_length(gradient) for gradient in plain]
        return sum(losses) / count, norms, hessians, _length(mean), hessian_of_mean, max(spread)

    def _gradients(self, model: torch.nn.Module) -> Iterator[tuple[float, Parts]]:
        """Yield loss and gradient of each agent, whose graph stays for the products."""
        for part in self._parts:
            device = self._parameters[0].device
            images, labels = (torch.cat(each).to(device) for each in zip(*part.batches(), strict=True))
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            yield loss.item(), list(torch.autograd.grad(loss, self._parameters, create_graph=True))

    def _norm(self, place: int, gradients: Sequence[Parts]) -> float:
        length = 0.0
        for _ in range(self._rounds):
            products = [self._product(gradient, self._vectors[place]) for gradient in gradients]
            total = [torch.stack(part).mean(0) for part in zip(*products, strict=True)]
            self._vectors[place], length = _unit(total)
        return length

    def _product(self, gradient: Parts, vector: Parts) -> Parts:
        return list(torch.autograd.grad(gradient, self._parameters, vector, retain_graph=True))


def _length(parts: Parts) -> float:
    return float(torch.stack([part.square().sum() for part in parts]).sum().sqrt())


def _unit(parts: Parts) -> tuple[Parts, float]:
    length = _length(parts)
    return [part / length if length > 0 else part for part in parts], length
