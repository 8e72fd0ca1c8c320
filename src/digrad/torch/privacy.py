"""Differential privacy of an agent in torch: gradients of single samples, clipped, with Gaussian noise."""

import secrets
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from digrad import checks
from digrad.arrays import clip_rows
from digrad.errors import ArgumentError
from digrad.noise import Gaussian, draws
from digrad.privacy import Private
from digrad.sampling import PRIVACY, PoissonSamples


class PrivateShard:
    """The samples of one agent, of which only clipped and noisy gradients are used: see :mod:`digrad.privacy`.

    Args:
        indices: For every agent the samples it owns, as :func:`digrad.data.partition` returns them.
        agent: This agent's number.
        private: Clip, noise and rate.
        seed: Random seed of samples and noise, which are then those of the simulator: for experiments. By default both
            follow a secret that this process draws and nobody stores, without which there is no privacy.
        weight: By how much the agent counts more than one vote, n p_i; a factor of the loss would be clipped away.

    Raises:
        ArgumentError: There is no such agent, or it owns no samples.

    Example:
        >>> shard = PrivateShard([np.arange(4), np.arange(4, 10)], agent=1, private=Private(1.0, 0.0, rate=1.0))
        >>> shard.batch(0).tolist()
        [4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        indices: Sequence[npt.NDArray[np.integer]],
        *,
        agent: int,
        private: Private,
        seed: int | None = None,
        weight: float = 1.0,
    ) -> None:
        checks.positive(weight, "weight", "PrivateShard")
        if not 0 <= agent < len(indices):
            raise ArgumentError(
                f"`agent` of PrivateShard must be 0 to {len(indices) - 1}, but got {agent!r}."
            )
        if len(indices[agent]) == 0:
            raise ArgumentError(
                f"`indices` of PrivateShard give agent {agent} no samples; use another partition."
            )
        if seed is None:  # everybody has a secret, so that there is nothing to share out
            indices, agent, seed = [indices[agent]], 0, secrets.randbits(63)
        self._own = torch.as_tensor(np.asarray(indices[agent], np.int64))
        self._private, self._agent, self._n, self._seed = private, agent, len(indices), seed
        self._weight = weight
        self._sampler = PoissonSamples(tuple(len(own) for own in indices), private.rate, seed)

    def __len__(self) -> int:
        """Return how many samples the agent owns."""
        return len(self._own)

    def batch(self, k: int) -> torch.Tensor:
        """Return the samples drawn at step k, perhaps none, as indices into the whole data set."""
        drawn = self._sampler.batches(k, 1)[0, self._agent]
        return self._own[torch.from_numpy(drawn[drawn >= 0].astype(np.int64))]

    def backward(
        self,
        k: int,
        model: torch.nn.Module,
        loss: Callable[..., torch.Tensor],
        inputs: torch.Tensor,
        *targets: torch.Tensor,
    ) -> None:
        """Add the private gradient of step k to ``grad`` of the parameters, in place of ``loss(...).backward()``.

        Regularisers carry no data and have a ``backward`` of their own. Needs memory for one gradient per sample drawn.

        Args:
            k: The step.
            model: Model of this agent.
            loss: Called as ``loss(model(inputs), *targets)``, with batches of one sample.
            inputs: The whole data set, ``[samples, ...]``; the samples drawn are used.
            *targets: Likewise.

        Raises:
            ArgumentError: The model has BatchNorm, which mixes samples.
        """
        if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules()):
            raise ArgumentError("`model` of PrivateShard has BatchNorm, which mixes samples; use GroupNorm.")
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        point = {name: value.detach() for name, value in trained.items()}

        def of_one(point: dict[str, torch.Tensor], *sample: torch.Tensor) -> torch.Tensor:
            one = [value[None] for value in sample]
            return loss(torch.func.functional_call(model, point, one[0]), *one[1:])

        samples = [values[self.batch(k).to(values.device)] for values in (inputs, *targets)]
        d, clip = sum(value.numel() for value in trained.values()), self._private.clip
        agent = slice(self._agent, self._agent + 1)
        noise = draws(Gaussian(1.0), self._seed, k, 1, self._n, d, agent, PRIVACY)[0, 0]
        total = (
            clip * self._private.noise_multiplier * torch.from_numpy(noise).to(next(iter(trained.values())))
        )
        if len(samples[0]):
            per_sample = torch.func.vmap(
                torch.func.grad(of_one), (None, *[0] * len(samples)), randomness="different"
            )
            found = per_sample(point, *samples)
            total += clip_rows(torch.cat([found[name].flatten(1) for name in trained], 1), clip).sum(0)
        total *= self._weight / (self._private.rate * len(self))
        for value, part in zip(
            trained.values(), total.split([v.numel() for v in trained.values()]), strict=True
        ):
            value.grad = part.view(value.shape) + (0 if value.grad is None else value.grad)
