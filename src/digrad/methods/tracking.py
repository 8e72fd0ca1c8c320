"""Gradient tracking put together from parts: what is tracked, how it is mixed, and how a tracker becomes a step."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from digrad import checks
from digrad.arrays import row_norm, zeros_like
from digrad.errors import ArgumentError
from digrad.methods.defaults import parameter_shapes, state_x
from digrad.methods.directions import CheckedDirection, plain
from digrad.methods.estimators import Estimator, gradient
from digrad.types import Array, Net, StepSize

TrackingMixing: TypeAlias = Literal["push-pull", "sinkhorn", "row"]
Order: TypeAlias = Literal["cta", "x-atc", "atc"]


class TrackingState(NamedTuple):
    """State of Tracking between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers
    g: Array  # [n, d] what is tracked, as far as y already contains it
    memory: Array  # [n, m] what the direction remembers


@dataclass(frozen=True, eq=False)
class Tracking:
    r"""Gradient tracking with the estimator, the direction, the matrices and the order of your choice.

    Most tracking methods are one choice of each. The published ones have a file of their own and give the same numbers.

    .. math::
        g_i^{k+1} &= E(\nabla f_i(x_i^k), g_i^k)                              \qquad (1) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + g_i^{k+1} - g_i^k                  \qquad (2) \\
        x_i^{k+1} &= \sum_j R_{ij} x_j^k - \alpha\, D(y_i^{k+1})              \qquad (3)

    with estimator E, direction D and :math:`g_i^0 = y_i^0 = 0`. ``order`` moves the mixing to the front of the sums
    ("adapt then combine").

    Args:
        step_size: :math:`\alpha > 0`; 1 for an optimizer with a learning rate of its own.
        estimator: Quantity that is tracked (:mod:`digrad.methods.estimators`): ``gradient()``, ``momentum(0.9)``, or
            what ``error_feedback(5.0)`` lets through.
        direction: How a tracker becomes a step (:mod:`digrad.methods.directions`): ``plain()``, ``clip(5.0)``,
            ``soft_clip(5.0)``, ``normalize()``, ``sign()``, ``orthogonalize()``, an optimizer
            (``from_optax(optax.adam(1e-3))``, ``from_torch(...)``), or a ``chain(...)`` of them.
        mixing: ``"push-pull"``: R row-stochastic, C column-stochastic; ``"sinkhorn"``: R = C doubly stochastic;
            ``"row"``: C = R row-stochastic, which minimises the Perron-weighted loss instead of the average.
        order: ``"cta"`` as above; ``"x-atc"`` mixes the stepped estimates, :math:`R(x - \alpha D)`; ``"atc"`` also the
            changed trackers, :math:`C(y + g^{k+1} - g^k)`.

    ====================  ==================  =====================  ========  ========
    method                estimator           direction              mixing    order
    ====================  ==================  =====================  ========  ========
    AB                    gradient            plain                  R, C      cta
    PushPull              gradient            plain                  R, C      x-atc
    AugPushPull           gradient            plain                  R, C      atc
    CGT                   gradient            clip                   R, C      cta
    SoftCGT               gradient            soft_clip              R, C      cta
    NormalizedAB          gradient            normalize              R, C      cta
    DSGT                  gradient            plain                  sinkhorn  x-atc
    MomentumTracking      momentum            plain                  sinkhorn  cta
    DeMuon                momentum, dampened  orthogonalize          sinkhorn  atc
    GTNSGDm               momentum, dampened  normalize              sinkhorn  atc
    ====================  ==================  =====================  ========  ========

    Communication: 2d numbers per edge and step; 1 dependent round with ``"cta"``, else 2. No memory is sent.
    Converges: to a stationary point of the average loss when alpha is small enough and the direction vanishes with the
        tracker; to a neighbourhood proportional to alpha for directions of fixed length; with an optimizer it is
        measured, not proved (Adam too ends at the exact minimum without noise, and around it with mini-batches).
    Invariant: the y_i sum to the g_i at every step, whatever the parts (with ``"row"``: both weighted by u).
    Deviations: the index of (2) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> method = dg.Tracking(0.02, estimator=dg.estimators.momentum(0.5), direction=dg.directions.clip(5.0))
        >>> dg.simulate(method, problem, network, steps=1000).verdict
        'converged'
    """

    step_size: StepSize
    estimator: Estimator = field(default_factory=gradient)
    direction: CheckedDirection = field(default_factory=plain)
    mixing: TrackingMixing = "push-pull"
    order: Order = "cta"

    connectivity: ClassVar = "common root"
    estimate = query = state_x

    def __post_init__(self) -> None:
        """Check the hyper-parameters and the parts."""
        checks.fields(self)
        _check_estimator(self.estimator)

    @property
    def needs(self) -> frozenset[str]:
        """The weights that it mixes with."""
        return frozenset({"row", "column"} if self.mixing == "push-pull" else {"doubly"})

    @property
    def converges(self) -> str:
        """Limit of the method, in the words of the published methods."""
        return {True: "exact", False: "neighbourhood", None: "measured"}[self.direction.vanishes]

    def init(self, x0: Array, net: Net) -> TrackingState:
        """Start at x0 with empty trackers and a direction that remembers nothing."""
        memory = self.direction.init(x0, parameter_shapes(x0, net))
        return TrackingState(x=x0, y=zeros_like(x0), g=zeros_like(x0), memory=memory)

    def step(self, state: TrackingState, grad: Array, net: Net) -> TrackingState:
        """Estimate, track, then move as the direction says."""
        pull, push = (net.pull, net.push) if self.mixing == "push-pull" else (net.mix, net.mix)
        g = self.estimator.update(grad, state.g)  # (1)
        is_late = self.order != "atc"
        y = push(state.y) + g - state.g if is_late else push(state.y + g - state.g)  # (2)
        shapes = parameter_shapes(state.x, net)
        direction, memory = self.direction.update(y, state.memory, state.x, shapes)
        move = self.step_size * direction
        x = pull(state.x) - move if self.order == "cta" else pull(state.x - move)  # (3)
        return TrackingState(x=x, y=y, g=g, memory=memory)

    def diagnostics(self, state: TrackingState, grad: Array, net: Net) -> dict[str, Array]:
        """Return what was clipped in the step that led to ``state``, relative to the threshold, if there is one."""
        return {"clip_ratio": row_norm(state.y) / getattr(self.direction, "threshold", math.inf)}


def _check_estimator(value: object) -> None:
    if hasattr(value, "vanishes"):
        raise ArgumentError(
            f"`estimator` of Tracking must not be a direction, but got {value!r}: gradients that are clipped or "
            "normalized before they are tracked add up to zero at a wrong point; give it as `direction`, or track "
            "with estimator=error_feedback(threshold), which is not biased."
        )
    if isinstance(value, type) or not hasattr(value, "update"):
        raise ArgumentError(
            f"`estimator` of Tracking must be one of digrad.estimators, such as momentum(0.9), but got {value!r}."
        )
