r"""Gradient noise as a model: what is added to every gradient, a pure function of (seed, step, agent).

The noise :math:`\text{scale} \cdot \xi` has independent entries over steps, agents and coordinates, drawn by a counter
(Philox) like the samples: any step of any agent can be regenerated alone, and all engines draw the same numbers. How
heavy the tails are is what decides between plain, clipped and normalized steps: of :class:`StudentT` moments of order p
are finite for p < df only, of :class:`AlphaStable` for p < alpha; both have a mean, and below 2 no variance.

>>> noise = StudentT(df=3.0, scale=1.0)
>>> draws(noise, 0, 0, 1, 5, 2)[0, 0]
array([-2.13371   , -0.40450566])
>>> bool((draws(noise, 0, 0, 9, 5, 2)[8, 3] == draws(noise, 0, 8, 1, 5, 2)[0, 3]).all())
True
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.sampling import GRADIENT_NOISE, WORDS
from digrad.types import OnePositive

Floats = npt.NDArray[np.float64]


def _with_mean(value: float, name: str, owner: str, most: float) -> None:
    if not 1 < value <= most:
        allowed = "above 1" if most == np.inf else f"above 1 and at most {most:g}"
        raise ArgumentError(
            f"`{name}` of {owner} must be {allowed}, because noise without a mean has no gradient to estimate, but got "
            f"{value!r}."
        )


class Noise(Protocol):
    """A symmetric distribution, made of two uniform numbers in (0, 1) per draw."""

    def shape(self, u: Floats, v: Floats) -> Floats:
        """Return draws of the noise, one for each pair of uniform numbers."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """Normal noise with standard deviation ``scale``."""

    scale: OnePositive

    __post_init__ = checks.fields

    def shape(self, u: Floats, v: Floats) -> Floats:
        """Return normal draws (Box and Muller)."""
        return self.scale * np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)


@dataclass(frozen=True)
class StudentT:
    """Noise with Student's t distribution, times ``scale``; its tails are those of the power ``-df``.

    Args:
        df: Degrees of freedom, above 1, so that there is a mean; up to 2 there is no variance.
        scale: Factor of every draw.
    """

    df: Annotated[float, partial(checks.one_number, partial(_with_mean, most=np.inf))]
    scale: OnePositive

    __post_init__ = checks.fields

    def shape(self, u: Floats, v: Floats) -> Floats:
        """Return draws, exactly: one coordinate of the bivariate t distribution (Bailey, 1994)."""
        return self.scale * np.sqrt(self.df * (u ** (-2 / self.df) - 1)) * np.cos(2 * np.pi * v)


@dataclass(frozen=True)
class AlphaStable:
    """Symmetric alpha-stable noise, times ``scale``: what sums of heavy-tailed errors tend to.

    Args:
        alpha: Above 1, so that there is a mean, and at most 2, where it is normal with variance 2 scale^2; below, there
            is no variance.
        scale: Factor of every draw; the characteristic function is ``exp(-|scale t|^alpha)``.
    """

    alpha: Annotated[float, partial(checks.one_number, partial(_with_mean, most=2.0))]
    scale: OnePositive

    __post_init__ = checks.fields

    def shape(self, u: Floats, v: Floats) -> Floats:
        """Return draws by the method of Chambers, Mallows and Stuck (1976)."""
        a, angle, size = self.alpha, np.pi * (u - 0.5), -np.log(v)
        spread = (np.cos((1 - a) * angle) / size) ** ((1 - a) / a)
        return self.scale * np.sin(a * angle) / np.cos(angle) ** (1 / a) * spread


NOISES: dict[str, type[Gaussian | StudentT | AlphaStable]] = {
    "gaussian": Gaussian,
    "student_t": StudentT,
    "alpha_stable": AlphaStable,
}


def draws(
    noise: Noise,
    seed: int,
    first: int,
    length: int,
    n: int,
    d: int,
    agents: slice = slice(None),
    stream: int = GRADIENT_NOISE,
) -> Floats:
    """Return the noise of the steps first, ..., first + length - 1, ``[length, agents, d]``.

    Args:
        noise: The distribution.
        seed: Random seed of the run.
        first: The first step.
        length: Number of steps.
        n: Number of agents.
        d: Numbers per agent.
        agents: Whose noise; by default that of all.
        stream: Which of the independent streams of the seed.
    """
    wanted = range(n)[agents]
    counters = -(-2 * d // WORDS)
    blocks = [(first + k) * n + wanted.start for k in range(length)]
    if len(wanted) == n:
        blocks, rows = blocks[:1], length * n
    else:
        rows = len(wanted)
    philox = (np.random.Philox(key=[seed, stream]).advance(block * counters) for block in blocks)
    raw = np.stack([generator.random_raw(rows * counters * WORDS) for generator in philox])
    draws = (raw >> np.uint64(11)).astype(np.float64)
    uniform = (draws + 0.5) * 2.0**-53  # never 0, whose logarithm is infinite
    pairs = uniform.reshape(length, len(wanted), -1)[:, :, : 2 * d].reshape(length, len(wanted), d, 2)
    return noise.shape(pairs[..., 0], pairs[..., 1])


def tail_index(values: npt.ArrayLike, fraction: float = 0.05) -> float:
    """Return Hill's estimate of the tail index: ``P(|X| > t)`` falls like t to the power minus this.

    Above 2 the variance is finite, and averaging batches helps as usual; between 1 and 2 it is not, and steps should be
    clipped or normalized. Infinite for values whose largest are all equal.

    Args:
        values: Errors of gradients, such as those of mini-batches minus the full gradient, of any shape.
        fraction: Fraction of the values, the largest, that count as the tail.

    Raises:
        ArgumentError: Fewer than 20 values count, or one is not a finite number.

    Example:
        >>> 1.4 < tail_index(draws(StudentT(df=1.5, scale=0.1), 0, 0, 2000, 5, 2)) < 1.6
        True
    """
    sizes = np.sort(np.abs(np.asarray(values, np.float64)).ravel())[::-1]
    checks.positive(fraction, "fraction", "tail_index")
    count = int(fraction * sizes.size)
    if not np.isfinite(sizes).all() or not 20 <= count < sizes.size or not sizes[count] > 0:
        raise ArgumentError(
            f"`values` of tail_index must be finite numbers of which at least 20 count as the tail, but got "
            f"{sizes.size} of which {count} do; give more of them, or a larger `fraction` below 1."
        )
    excess = float(np.log(sizes[:count] / sizes[count]).mean())
    return 1 / excess if excess > 0 else float("inf")


def check_noise(noise: Any, name: str, owner: str) -> None:
    """Raise unless ``noise`` is a model of noise."""
    if isinstance(noise, type) or not hasattr(noise, "shape") or isinstance(noise, np.ndarray):
        raise ArgumentError(
            f"`{name}` of {owner} must be a model of digrad.noise, such as StudentT(df=1.5, scale=0.1), but "
            f"got {noise!r}."
        )
