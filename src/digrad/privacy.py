r"""Differential privacy at the source: what leaves an agent is made of clipped and noisy gradients only.

Every sample of an agent is drawn with probability q, independently of the others (Poisson sampling), and its gradient
is clipped to C; the sum gets Gaussian noise:

.. math::
    g_i = \frac{1}{q\, m_i} \Big( \sum_{j \text{ drawn}} \min\big(1, C/\|\nabla f_{ij}\|\big)
          \nabla f_{ij} + C z\, \xi \Big), \qquad \xi \sim N(0, I)

Trackers, messages and estimates are functions of such gradients, so that the epsilon of an agent is that of its own
mechanism over the steps, whatever the graph, the method and the links. What this does not protect: losses and metrics
that are computed from the data, the sizes m_i, and the choice of step size, C and z by looking at the data. Clipping
samples biases the result; the smaller C, the more. The noise of a simulation follows a public seed: it shows what a run
with secret noise would reach, and is not private itself.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.types import NotNegative, OnePositive

WHOLE_ORDERS = np.array([*range(2, 64), 128, 256, 512])
MOST_NOISE = 2.0**40  # beyond which more of it proves no smaller epsilon
ROUNDING = 1e-12  # relative error of a noise multiplier that was searched for


@dataclass(frozen=True)
class Private:
    """Gradients of Poisson samples, each clipped, with Gaussian noise: ``sampling=Private(...)`` of a run.

    Args:
        clip: C > 0, the largest norm of the gradient of a sample; regularisers, which carry no data, are not clipped.
        noise_multiplier: z >= 0, the standard deviation of the noise in units of C.
        rate: q in (0, 1], the probability that a sample is drawn at a step.
        delta: With it, runs record the column ``epsilon``: what each agent has spent so far.

    Example:
        >>> Private(clip=1.0, noise_multiplier=1.3, rate=0.01).rate
        0.01
    """

    clip: OnePositive
    noise_multiplier: NotNegative
    rate: OnePositive
    delta: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        checks.fields(self)
        if self.rate > 1:
            raise ArgumentError(f"`rate` of Private must be at most 1, but got {self.rate!r}.")
        if self.delta is not None:
            self.epsilon(0)  # checks it

    @classmethod
    def with_epsilon(cls, epsilon: float, *, steps: int, clip: float, rate: float, delta: float) -> "Private":
        """Return the mechanism with the least noise that spends at most ``epsilon`` in ``steps`` steps.

        Args:
            epsilon: What each agent may spend in all, as :meth:`epsilon` counts it.
            steps: How many gradients are released.
            clip: A field of the result, like ``rate`` and ``delta``.

        Raises:
            ArgumentError: No noise spends so little.

        Example:
            >>> private = Private.with_epsilon(3.0, steps=400, clip=1.0, rate=0.02, delta=1e-5)
            >>> round(private.noise_multiplier, 3), round(float(private.epsilon(400)), 6)
            (0.98, 3.0)
        """
        from scipy.optimize import root_scalar

        checks.positive(epsilon, "epsilon", "Private.with_epsilon")
        checks.count(steps, "steps", "Private.with_epsilon")

        def excess(noise_multiplier: float) -> float:
            return float(cls(clip, noise_multiplier, rate, delta).epsilon(steps)) - epsilon

        most = 1.0
        while excess(most) > 0:
            most *= 2
            if most > MOST_NOISE:
                raise ArgumentError(
                    f"`epsilon` of Private.with_epsilon must be at least {epsilon + excess(most):.2g}, the least that "
                    f"can be shown with delta={delta:g}, but got {epsilon:g}; take a larger epsilon or delta."
                )
        least = most / 2
        while excess(least) <= 0:
            least /= 2
        found = root_scalar(excess, bracket=(least, most), method="brentq", xtol=ROUNDING * most).root
        return cls(clip, found + 2 * ROUNDING * most, rate, delta)  # on the side that spends no more

    def epsilon(self, steps: npt.ArrayLike, delta: float | None = None) -> npt.NDArray[np.float64]:
        r"""Return the epsilon of each agent after ``steps`` steps, in the shape of ``steps``.

        Two data sets are neighbours if one has a sample more. By Renyi's divergence of the sampled Gaussian mechanism
        (Mironov, Talwar and Zhang, 2019) at whole orders, composed over the steps, and turned into epsilon by Canonne,
        Kamath and Steinke (2020): an upper bound. Infinite without noise.

        Args:
            steps: How many gradients were released.
            delta: In (0, 1), less than one over the number of samples; that of the object by default.

        Example:
            >>> private = Private(clip=1.0, noise_multiplier=1.3, rate=150 / 60000)
            >>> round(float(private.epsilon(6000, delta=1e-5)), 6)
            0.724223
        """
        delta = self.delta if delta is None else delta
        if delta is None or not 0 < delta < 1:
            raise ArgumentError(f"`delta` of Private must be between 0 and 1, but got {delta!r}.")
        released = np.asarray(steps, np.float64)
        if not (released >= 0).all():
            raise ArgumentError(f"`steps` of Private.epsilon must be at least 0, but got {steps!r}.")
        if self.noise_multiplier == 0:
            return np.where(released > 0, np.inf, 0.0)
        orders, divergence = self._divergence()
        constant = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
        found = (released[..., None] * divergence + constant).min(axis=-1)
        return np.where(released > 0, np.maximum(found, 0.0), 0.0)

    def _divergence(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return orders, and the divergence of one step at each."""
        variance = self.noise_multiplier**2
        if self.rate == 1:
            orders = np.concatenate([1 + np.arange(1, 100) / 10, WHOLE_ORDERS[9:]])
            return orders, orders / (2 * variance)
        from scipy.special import gammaln, logsumexp

        a, k = WHOLE_ORDERS[:, None], np.arange(WHOLE_ORDERS[-1] + 1)
        binomial = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)  # log 0 for k > a
        drawn = k * math.log(self.rate) + (a - k) * math.log1p(-self.rate)
        moments = logsumexp(binomial + drawn + k * (k - 1) / (2 * variance), axis=1)
        return WHOLE_ORDERS.astype(np.float64), moments / (WHOLE_ORDERS - 1)
