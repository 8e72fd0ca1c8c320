"""Tracking: which published method each composition is, where compositions end, and what is refused."""

from itertools import pairwise

import numpy as np
import optax
import pytest
import torch

import digrad as dg
from digrad.errors import ArgumentError
from digrad.methods.directions import (
    chain,
    clip,
    from_optax,
    from_torch,
    normalize,
    orthogonalize,
    plain,
    sign,
    soft_clip,
)
from digrad.methods.estimators import error_feedback, gradient, momentum
from digrad.testing import check_method
from digrad.testing.numpy_net import network, run, weights
from digrad.torch import Checkpoints, Replicas
from method_problems import Q5, Q5_GRAPH, Q5_START, error, random_problem

PROBLEM, NETWORK = dg.problems.example_quadratic(), dg.Network(Q5_GRAPH)
NET = network(Q5_GRAPH)
R, C, W = weights(Q5_GRAPH)
STEPS = 50

COMPOSITIONS = {
    "AB": (dg.AB(0.05), dg.Tracking(0.05)),
    "PushPull": (dg.PushPull(0.05), dg.Tracking(0.05, order="x-atc")),
    "AugPushPull": (dg.AugPushPull(0.05), dg.Tracking(0.05, order="atc")),
    "CGT": (dg.CGT(0.05, 2.0), dg.Tracking(0.05, direction=clip(2.0))),
    "SoftCGT": (dg.SoftCGT(0.05, 2.0), dg.Tracking(0.05, direction=soft_clip(2.0))),
    "NormalizedAB": (dg.NormalizedAB(0.05), dg.Tracking(0.05, direction=normalize())),
    "DSGT": (dg.DSGT(0.05), dg.Tracking(0.05, mixing="sinkhorn", order="x-atc")),
    "DSGT-row": (dg.DSGT(0.05, mixing="row"), dg.Tracking(0.05, mixing="row", order="x-atc")),
    "GTNSGDm": (
        dg.GTNSGDm(0.05, 0.8),
        dg.Tracking(
            0.05,
            estimator=momentum(0.8, dampening=0.8),
            direction=normalize(),
            mixing="sinkhorn",
            order="atc",
        ),
    ),
    "MomentumTracking": (
        dg.MomentumTracking(0.02, 0.7),
        dg.Tracking(0.02, estimator=momentum(0.7), mixing="sinkhorn"),
    ),
    "DeMuon": (
        dg.DeMuon(0.05, 0.8),
        dg.Tracking(
            0.05,
            estimator=momentum(0.8, dampening=0.8),
            direction=orthogonalize(),
            mixing="sinkhorn",
            order="atc",
        ),
    ),
    "DeMuon on vectors is GTNSGDm": (dg.GTNSGDm(0.05, 0.8), dg.DeMuon(0.05, 0.8)),
    "no momentum is AB": (dg.AB(0.05), dg.Tracking(0.05, estimator=momentum(0.0))),
    "no threshold is AB": (dg.AB(0.05), dg.Tracking(0.05, estimator=error_feedback(np.inf))),
    "no clipping is AB": (dg.AB(0.05), dg.Tracking(0.05, direction=clip(np.inf))),
}


def simulate(method, steps=STEPS, **options):
    return dg.simulate(method, PROBLEM, NETWORK, x0=Q5_START, steps=steps, **options)


def replicas(method):
    models = [torch.nn.ParameterList([torch.tensor(row)]) for row in Q5_START]
    return Replicas(models, method, NETWORK)


def train(agents, steps):
    a, b = torch.tensor(Q5.a), torch.tensor(Q5.b)
    for _ in range(steps):
        agents.zero_grad()
        for i, model in enumerate(agents.models):
            (x,) = model.parameters()
            (0.5 * a[i] @ x**2 - b[i] @ x).backward()
        agents.step()
    return agents.estimate().numpy()


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_composition_is_the_published_method_bit_for_bit(name):
    published, composed = COMPOSITIONS[name]
    first, second = (run(one, NET, Q5.gradient, Q5_START, STEPS) for one in (published, composed))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)


def test_composition_is_the_published_method_bit_for_bit_when_compiled_and_in_torch():
    published, composed = COMPOSITIONS["CGT"]
    np.testing.assert_array_equal(simulate(composed).final_x, simulate(published).final_x)
    np.testing.assert_array_equal(train(replicas(composed), 12), train(replicas(published), 12))


@pytest.mark.parametrize(
    "method",
    [
        dg.Tracking(0.02, estimator=momentum(0.7), direction=clip(2.0)),
        dg.Tracking(0.02, estimator=error_feedback(1.0), direction=soft_clip(5.0), order="x-atc"),
        dg.Tracking(0.02, estimator=momentum(0.5), direction=chain(clip(2.0), sign()), order="atc"),
        dg.Tracking(0.02, direction=orthogonalize(), mixing="sinkhorn"),
        dg.Tracking(0.02, direction=normalize(), mixing="row", order="x-atc"),
    ],
    ids=["momentum-clip", "feedback-soft", "chain", "orthogonalize", "row"],
)
def test_composition_keeps_the_contract(method):
    assert not [line for line in check_method(method) if line.startswith("not checked")]


def transcription(x0, steps, *, step, estimate=lambda grad, g: grad, R=R, C=C, order="cta"):
    """Run the three lines of Tracking with loops over the agents."""
    n = len(x0)
    x, y, g = [list(np.zeros_like(x0)) for _ in range(3)]
    x = list(x0)
    for _ in range(steps):
        new = [estimate(Q5.a[i] * x[i] - Q5.b[i], g[i]) for i in range(n)]
        if order == "atc":
            y = [sum(C[i, j] * (y[j] + new[j] - g[j]) for j in range(n)) for i in range(n)]
        else:
            y = [sum(C[i, j] * y[j] for j in range(n)) + new[i] - g[i] for i in range(n)]
        if order == "cta":
            x = [sum(R[i, j] * x[j] for j in range(n)) - step(y[i]) for i in range(n)]
        else:
            x = [sum(R[i, j] * (x[j] - step(y[j])) for j in range(n)) for i in range(n)]
        g = new
    return np.array(x)


def clipped(v, c):
    return v * min(1.0, c / max(np.linalg.norm(v), 1e-300))


@pytest.mark.parametrize("order", ["cta", "x-atc", "atc"])
def test_composition_follows_its_equations(order):
    cases = [
        (momentum(0.7), lambda grad, g: 0.7 * g + grad, clip(2.0), lambda y: clipped(y, 2.0)),
        (error_feedback(2.0), lambda grad, g: g + clipped(grad - g, 2.0), plain(), lambda y: y),
        (gradient(), lambda grad, g: grad, sign(), np.sign),
        (momentum(0.9, dampening=0.9), lambda grad, g: 0.9 * g + 0.1 * grad, soft_clip(3.0),
         lambda y: 3 * y / (3 + np.linalg.norm(y))),
    ]  # fmt: skip
    for estimator, estimate, direction, shape in cases:
        for mixing, first, second in (("push-pull", R, C), ("sinkhorn", W, W), ("row", R, R)):
            method = dg.Tracking(0.02, estimator=estimator, direction=direction, mixing=mixing, order=order)
            found = run(method, NET, Q5.gradient, Q5_START, 30)[-1].x
            expected = transcription(
                Q5_START, 30, step=lambda y, shape=shape: 0.02 * shape(y), estimate=estimate,
                R=first, C=second, order=order,
            )  # fmt: skip
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def end(method, steps, start=Q5_START):
    return run(method, NET, Q5.gradient, start, steps)[-1].x


def test_error_feedback_is_exact_for_every_threshold_on_the_way_of_the_specification():
    method = dg.Tracking(0.05, estimator=error_feedback(2.0))
    x3 = end(method, 3)
    np.testing.assert_allclose(x3[0], [9.650995, -9.646241], atol=5e-7)
    np.testing.assert_allclose(x3[4], [9.494000, -9.643447], atol=5e-7)
    entries = [error(end(method, steps), Q5.minimum)[1] for steps in (50, 100, 200)]
    assert entries == pytest.approx([3.831e-3, 1.22e-6, 1.2e-13], rel=0.05)
    for threshold in (0.5, 10.0):
        assert error(end(dg.Tracking(0.05, estimator=error_feedback(threshold)), 1000), Q5.minimum)[1] < 1e-13


def test_error_feedback_bounds_what_an_agent_adds_in_a_step():
    states = run(dg.Tracking(0.05, estimator=error_feedback(2.0)), NET, Q5.gradient, Q5_START, 40)
    changes = [np.linalg.norm(after.g - before.g, axis=1).max() for before, after in pairwise(states)]
    assert max(changes) <= 2.0 * (1 + 1e-14)
    assert max(changes) > 1.99


def test_momentum_before_the_network_is_heavy_ball_after_it():
    before = simulate(dg.Tracking(0.02, estimator=momentum(0.7))).final_x
    after = simulate(dg.Tracking(1.0, direction=from_optax(optax.sgd(0.02, momentum=0.7)))).final_x
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-13)
    nonlinear = [
        dg.Tracking(0.02, estimator=momentum(0.7), direction=clip(2.0)),
        dg.Tracking(1.0, direction=chain(clip(2.0), from_optax(optax.sgd(0.02, momentum=0.7)))),
    ]
    first, second = (simulate(method).final_x for method in nonlinear)
    assert abs(first - second).max() > 1.0  # clipping in between makes it another method


@pytest.mark.parametrize("direction", [normalize(), sign()], ids=["normalize", "sign"])
def test_direction_of_fixed_length_ends_in_a_band_of_the_step_size(direction):
    errors = [
        error(end(dg.Tracking(step, direction=direction), int(25 / step)), Q5.minimum)[1]
        for step in (0.1, 0.01)
    ]
    assert errors[0] < 0.2
    assert errors[1] < errors[0] / 3


def test_facts_follow_from_the_parts():
    assert dg.Tracking(0.1).converges == "exact"
    assert dg.Tracking(0.1, direction=chain(clip(1.0), normalize())).converges == "neighbourhood"
    assert dg.Tracking(0.1, direction=chain(clip(1.0), from_optax(optax.adam(0.1)))).converges == "measured"
    assert dg.Tracking(0.1).needs == {"row", "column"}
    assert dg.Tracking(0.1, mixing="sinkhorn").needs == {"doubly"}


def adam(x0, steps, rate, threshold):
    """Adam on clipped trackers, written down from its equations."""
    x, y, g, m, v = x0.copy(), 0 * x0, 0 * x0, 0 * x0, 0 * x0
    for k in range(1, steps + 1):
        grad = Q5.gradient(x)
        y, g = C @ y + grad - g, grad
        t = y * np.minimum(1, threshold / np.linalg.norm(y, axis=1, keepdims=True))
        m, v = 0.9 * m + 0.1 * t, 0.999 * v + 0.001 * t**2
        x = R @ x - rate * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
    return x


def test_adam_as_direction_is_its_equations_in_both_engines():
    expected = adam(Q5_START, STEPS, 0.1, 2.0)
    in_simulator = dg.Tracking(1.0, direction=chain(clip(2.0), from_optax(optax.adam(0.1))))
    np.testing.assert_allclose(simulate(in_simulator).final_x, expected, atol=1e-9)
    in_torch = chain(clip(2.0), from_torch(lambda p: torch.optim.Adam(p, lr=0.1)))
    np.testing.assert_allclose(
        train(replicas(dg.Tracking(1.0, direction=in_torch)), STEPS), expected, atol=1e-9
    )


def test_without_noise_momentum_and_adam_end_at_the_minimum():
    ends = {
        "momentum": simulate(dg.Tracking(1.0, direction=from_optax(optax.sgd(0.02, momentum=0.5))), 2000),
        "adam": simulate(dg.Tracking(1.0, direction=chain(clip(2.0), from_optax(optax.adam(0.01)))), 5000),
    }
    errors = {name: abs(trace.final_x - Q5.minimum).max() for name, trace in ends.items()}
    assert errors["momentum"] < 1e-9
    assert errors["adam"] < 1e-11


def test_memory_is_part_of_checkpoints_and_trackers_sum_to_the_gradients(tmp_path):
    method = dg.Tracking(1.0, direction=from_torch(lambda p: torch.optim.Adam(p, lr=0.1)))
    whole = train(replicas(method), 30)
    first = replicas(method)
    for _ in range(12):
        train(first, 1)
        state = first.state_fields
        torch.testing.assert_close(state.y.sum(0), state.g.sum(0), rtol=0, atol=1e-11)
    Checkpoints(tmp_path, first).save()
    second = replicas(method)
    Checkpoints(tmp_path, second).resume()
    np.testing.assert_array_equal(train(second, 18), whole)


def test_thresholds_of_parts_are_numbers_of_the_compiled_loop():
    one, other = (simulate(dg.Tracking(0.05, direction=clip(c)), 5) for c in (1.0, 2.0))
    assert abs(one.final_x - other.final_x).max() > 0.01
    swept = dg.compare(
        {str(c): dg.Tracking(0.05, direction=clip(c)) for c in (1.0, 2.0)},
        PROBLEM,
        NETWORK,
        steps=5,
        x0=Q5_START,
    )
    np.testing.assert_allclose(swept["2.0"].final_x, other.final_x, rtol=0, atol=1e-12)


def test_local_steps_may_be_those_of_any_optimizer():
    """DiLoCo as it is written down: Adam on every agent, Nesterov's step of torch on the mean of their ways."""
    H, rounds, a, b = 3, 6, torch.tensor(Q5.a), torch.tensor(Q5.b)
    fast = [torch.nn.Parameter(torch.tensor(row)) for row in Q5_START]
    slow = torch.nn.Parameter(torch.tensor(Q5_START[0]))
    inner = [torch.optim.Adam([x], lr=0.1) for x in fast]
    outer = torch.optim.SGD([slow], lr=0.7, momentum=0.6, nesterov=True)
    for k in range(1 + H * (rounds - 1)):
        for i, x in enumerate(fast):
            x.grad = (a[i] * x - b[i]).detach()
            inner[i].step()
        if k % H == 0:
            slow.grad = (slow - sum(fast) / 5).detach()
            outer.step()
            for x in fast:
                x.data.copy_(slow.detach())
    options = {"local_steps": H, "momentum": 0.6}
    network = dg.Network(dg.graphs.every(H, dg.graphs.complete(5)))
    in_torch = dg.DiLoCo(1.0, **options, direction=from_torch(lambda p: torch.optim.Adam(p, lr=0.1)))
    models = [torch.nn.ParameterList([torch.tensor(row)]) for row in Q5_START]
    found = train(Replicas(models, in_torch, network), 1 + H * (rounds - 1))
    np.testing.assert_allclose(found, np.tile(slow.detach(), (5, 1)), rtol=0, atol=1e-12)
    in_simulator = dg.DiLoCo(1.0, **options, direction=from_optax(optax.adam(0.1)))
    trace = dg.simulate(in_simulator, PROBLEM, network, steps=1 + H * (rounds - 1), x0=Q5_START)
    np.testing.assert_allclose(trace.final_x, found, atol=1e-8)  # optax adds epsilon elsewhere
    with pytest.raises(ArgumentError, match="`direction` of NoLoCo must be a direction"):
        dg.NoLoCo(0.1, direction=clip)


class TestShapes:
    """Matrices among the parameters."""

    START = np.array([[10.0, -10.0], [5.0, 8.0]])

    @staticmethod
    def loss(params, batch):
        a, b = batch
        x = params["x"]
        return 0.5 * (a[0] @ x**2).sum() - (b[0] * x).sum()

    @staticmethod
    def data():
        b = [np.array([[p, -q], [q, p]]) for p, q in Q5.b]
        return [(np.array([[1.0 + i, 5.0 - i]]), b[i][None]) for i in range(5)]

    def test_orthogonalize_sees_the_matrices_of_a_pytree(self):
        problem = dg.problems.from_loss(self.loss, self.data(), {"x": self.START})
        assert problem.code.shapes == ((2, 2),)
        method = dg.Tracking(0.1, estimator=momentum(0.8, dampening=0.8), direction=orthogonalize())
        trace = dg.simulate(method, problem, NETWORK, steps=3)
        expected = {
            0: (9.778377, -9.798745, 4.798745, 7.778377),
            4: (9.772222, -9.805887, 4.805887, 7.772222),
        }
        for agent, row in expected.items():
            np.testing.assert_allclose(trace.final_x[agent], row, atol=5e-7)
        band = [
            dg.simulate(
                dg.Tracking(step, estimator=momentum(0.8, dampening=0.8), direction=orthogonalize()),
                problem, NETWORK, steps=4000,
            ).final_x
            for step in (0.1, 0.01)
        ]  # fmt: skip
        minimum = np.array([1.0, -1.0, 1.0, 1.0]) / 3
        assert np.linalg.norm(band[0].mean(axis=0) - minimum) < 0.2
        assert np.linalg.norm(band[1].mean(axis=0) - minimum) < 0.02

    def test_orthogonalize_sees_the_matrices_of_a_module(self):
        method = dg.Tracking(0.1, estimator=momentum(0.8, dampening=0.8), direction=orthogonalize())
        models = [torch.nn.ParameterList([torch.tensor(self.START)]) for _ in range(5)]
        agents = Replicas(models, method, NETWORK)
        for _ in range(3):
            agents.zero_grad()
            for model, (a, b) in zip(agents.models, self.data(), strict=True):
                (x,) = model.parameters()
                (0.5 * (torch.tensor(a[0]) @ x**2).sum() - (torch.tensor(b[0]) * x).sum()).backward()
            agents.step()
        np.testing.assert_allclose(agents.estimate()[0], (9.778377, -9.798745, 4.798745, 7.778377), atol=5e-7)

    def test_optimizers_see_the_shapes_too(self):
        problem = dg.problems.from_loss(self.loss, self.data(), {"x": self.START})
        seen = []

        def note(updates, state, params=None):
            seen.append([leaf.shape for leaf in updates])
            return updates, state

        spy = optax.GradientTransformation(lambda params: optax.EmptyState(), note)
        dg.simulate(
            dg.Tracking(0.01, direction=from_optax(optax.chain(spy, optax.sgd(0.1)))),
            problem,
            NETWORK,
            steps=2,
        )
        assert set(map(tuple, seen)) == {((2, 2),)}

        shapes = []

        def make(params):
            shapes.extend(tuple(p.shape) for p in params)
            return torch.optim.SGD(params, lr=0.1, momentum=0.5)

        agents = Replicas(torch.nn.Linear(3, 2), dg.Tracking(1.0, direction=from_torch(make)), NETWORK)
        agents.zero_grad()
        agents.step()
        assert {(2, 3), (2,)} <= set(shapes)

    def test_channels_last_weights_are_matrices_of_their_memory(self):
        from digrad.torch.engines.flat_parameters import FlatParameters

        weight = torch.randn(4, 3, 2, 5).to(memory_format=torch.channels_last).requires_grad_()
        assert FlatParameters([[[weight]]], "test").shapes == ((4, 2, 5, 3),)

    def test_newton_schulz_leaves_singular_values_near_one(self):
        matrix = np.array([[3.0, 0.0, 4.0, 5.0]])
        exact, _ = orthogonalize().update(matrix, matrix[:, :0], matrix, ((2, 2),))
        np.testing.assert_allclose(exact[0], np.array([2, -1, 1, 2]) / 5**0.5, atol=1e-14)
        found, _ = orthogonalize(5).update(matrix, matrix[:, :0], matrix, ((2, 2),))
        values = np.linalg.svd(found.reshape(2, 2))[1]
        np.testing.assert_allclose(values, [1.1337, 0.7530], atol=5e-5)

    def test_rank_deficient_and_empty_matrices_are_safe(self):
        matrix = np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
        found, _ = orthogonalize().update(matrix, matrix[:, :0], matrix, ((2, 2),))
        np.testing.assert_allclose(found, [[0.5] * 4, [0.0] * 4], atol=1e-15)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: from_optax(3), "`transform` of from_optax must be an optax transformation"),
        (lambda: from_torch(3), "`make` of from_torch must be a function"),
        (lambda: dg.Tracking(1.0, direction=optax.adam(1.0)), "`direction` of Tracking must be a direction"),
        (lambda: dg.Tracking(1.0, direction=momentum(0.5)), "`direction` of Tracking must be a direction"),
        (
            lambda: dg.DiLoCo(1.0, direction="adam"),
            r"dg\.directions\.from_optax\(.* dg\.directions\.from_torch\(",
        ),
        (
            lambda: dg.Tracking(1.0, estimator=clip(2.0)),
            "at a wrong point; give it as `direction`, or .*error_feedback",
        ),
        (lambda: dg.Tracking(1.0, estimator=normalize()), "at a wrong point; give it as `direction`"),
        (lambda: dg.Tracking(1.0, estimator=0.9), "`estimator` of Tracking must be one of digrad.estimators"),
        (lambda: dg.Tracking(1.0, mixing="R"), "`mixing` of Tracking must be one of 'push-pull'"),
        (lambda: dg.Tracking(1.0, order="ATC"), "`order` of Tracking must be one of"),
        (lambda: dg.Tracking(0.0), "`step_size` of Tracking must be positive"),
        (lambda: clip(lambda k: 1.0), "`threshold` of clip must be a number"),
        (lambda: momentum(1.0), "`momentum` of momentum must be at least 0 and below 1"),
        (lambda: chain(), "`parts` of chain must be directions"),
        (
            lambda: chain(from_optax(optax.sgd(1.0)), from_optax(optax.sgd(1.0))),
            "at most one is an optimizer",
        ),
        (
            lambda: simulate(dg.Tracking(1.0, direction=from_torch(lambda p: torch.optim.SGD(p, lr=0.1)))),
            "is for the torch engines",
        ),
        (lambda: replicas(dg.Tracking(1.0, direction=from_optax(optax.sgd(0.1)))), "is for the simulator"),
        (
            lambda: simulate(dg.Tracking(1.0, direction=from_optax(optax.add_noise(0.1, 0.9, 0)))),
            "the key of random noise",
        ),
    ],
)
def test_what_does_not_fit_together_is_one_line(make, line):
    with pytest.raises(ArgumentError, match=line):
        make()


def test_invariant_holds_on_random_digraphs():
    for seed in range(5):
        graph, problem, start = random_problem(5, 3, seed)
        method = dg.Tracking(0.05, estimator=momentum(0.6), direction=chain(clip(1.0), sign()), order="atc")
        for state in run(method, network(graph), problem.gradient, start, 12)[1:]:
            np.testing.assert_allclose(state.y.sum(axis=0), state.g.sum(axis=0), rtol=0, atol=1e-11)
