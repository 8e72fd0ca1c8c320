"""The oracles of the specification of links: iterations to 1e-8, biases of naive policies, churn apart.

The whole tables are slow; a row of each kind is not.
"""

from dataclasses import dataclass, replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import digrad as dg
from digrad.links import Bursts, FixedDelay, Links
from link_runs import EXAMPLE, METHODS, QUADRATIC, distances, lose, random_20, settles_at

pytestmark = pytest.mark.filterwarnings("ignore:.*forget what is lost")

AWAKE = [1.0, 0.8, 0.5, 0.3, 0.1]
SPLIT = dg.graphs.split(EXAMPLE, 2)
ONE_PEER = dg.graphs.one_peer_exponential(8)
OTHERS = ("AB", "PushPull", "PushDIGing")

DETERMINISTIC = {  # name: (links, graph, k8 of CGT, errors at 100 and 200, k8 of AB, PushPull, PushDIGing)
    "perfect": (None, EXAMPLE, 247, (4.167279, 1.923222e-5), (130, 130, 131)),
    "links that do nothing": (Links(), EXAMPLE, 247, (4.167279, 1.923222e-5), (130, 130, 131)),
    "late by 1": (Links(delay=FixedDelay(1)), EXAMPLE, 506, (7.733432, 1.364745), (343, 331, 403)),
    "late by 5": (Links(delay=FixedDelay(5)), EXAMPLE, 2351, (11.424196, 8.776992), (2063, 2005, np.inf)),
    "split 2": (Links(), SPLIT, 341, (4.180000, 3.641691e-4), (257, 217, 286)),
    "split 7": (Links(), dg.graphs.split(EXAMPLE, 7), 467, (4.234280, 4.543926e-2), (367, 363, 376)),
    "one peer": (Links(), ONE_PEER, 263, (4.344398, 8.101580e-5), (146, 147, 147)),
}


def problem_on(graph):
    """Return the example for this many agents, and its minimum."""
    i = np.arange(graph.n) % 5
    curvature, linear = QUADRATIC.local.curvature[i], QUADRATIC.local.linear[i]
    problem = dg.problems.quadratic(curvature=curvature, linear=linear)
    return {"problem": problem, "minimum": linear.sum(axis=0) / curvature.sum(axis=0)}


def check_row(links, graph, k8, errors, others):
    steps, options = 2500 if k8 > 1000 else 600, problem_on(graph)
    found = distances(METHODS["CGT"], links, graph, steps=steps, **options)
    assert settles_at(found) == k8
    np.testing.assert_allclose(found[[100, 200]], errors, rtol=1e-4)
    for method, expected in others.items():
        assert settles_at(distances(METHODS[method], links, graph, steps=steps, **options)) == expected, (
            method
        )


@pytest.mark.parametrize("name", ["perfect", "late by 1", "one peer"])
def test_deterministic_rows_of_the_specification(name):
    *row, others = DETERMINISTIC[name]
    check_row(*row, {"PushDIGing": others[2]} if name == "perfect" else {})


@pytest.mark.slow
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_all_deterministic_rows_of_the_specification(name):
    *row, others = DETERMINISTIC[name]
    check_row(*row, dict(zip(OTHERS, others, strict=True)))


def test_losing_every_other_step_is_the_row_of_the_specification(monkeypatch):
    lose(monkeypatch, lambda k, edges: k % 2 == 0)
    check_row(Links(loss=0.5), EXAMPLE, 306, (4.175986, 9.430011e-4), {"PushDIGing": 236})


@pytest.mark.slow
def test_losing_every_other_step_is_the_whole_row_of_the_specification(monkeypatch):
    lose(monkeypatch, lambda k, edges: k % 2 == 0)
    others = {"AB": 196, "PushPull": 196, "PushDIGing": 236}
    check_row(Links(loss=0.5), EXAMPLE, 306, (4.175986, 9.430011e-4), others)


@pytest.mark.parametrize(
    ("compressor", "k8"),
    [
        (dg.compressors.top_k(1), 282),
        pytest.param(dg.compressors.sign(), 281, marks=pytest.mark.slow),
        (dg.compressors.quantize(2), 241),
        pytest.param(dg.compressors.quantize(4), 247, marks=pytest.mark.slow),
        pytest.param(dg.compressors.bfloat16(), 247, marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_compressed_rows_of_the_specification(compressor, k8):
    assert settles_at(distances(METHODS["CGT"], Links(compressor=compressor), steps=400)) == k8


RANDOM = dg.graphs.random_edges(EXAMPLE, 0.5, seed=0)
MIXED = {"awake": AWAKE, "loss": 0.3, "delay": 3}
BANDS = {  # (links, graph, {method: (least, most) of k8 over 20 seeds; None where no seed converges})
    "loss 0.1": (
        {"loss": 0.1},
        EXAMPLE,
        {"CGT": (253, 260), "AB": (137, 143), "PushPull": (140, 146), "PushDIGing": (139, 144)},
    ),
    "loss 0.3": ({"loss": 0.3}, EXAMPLE, {"CGT": (274, 302), "AB": (164, 180), "PushPull": (176, 196)}),
    "loss 0.5": (
        {"loss": 0.5},
        EXAMPLE,
        {"CGT": (315, 385), "AB": (202, 243), "PushPull": (236, 290), "PushDIGing": None},
    ),
    "loss 0.7": (
        {"loss": 0.7},
        EXAMPLE,
        {"CGT": (472, 591), "AB": (277, 365), "PushPull": (375, 450), "PushDIGing": None},
    ),
    "bursts of 5": (
        {"loss": Bursts(0.3, 5)},
        EXAMPLE,
        {"CGT": (350, 550), "AB": (211, 370), "PushPull": (238, 382), "PushDIGing": None},
    ),
    "bursts of 20": (
        {"loss": Bursts(0.3, 20)},
        EXAMPLE,
        {"CGT": (685, 1649), "AB": (356, 908), "PushPull": (471, 910), "PushDIGing": None},
    ),
    "delay 0..2": (
        {"delay": 2},
        EXAMPLE,
        {"CGT": (355, 377), "AB": (224, 251), "PushPull": (251, 272), "PushDIGing": (234, 279)},
    ),
    "delay 0..5": ({"delay": 5}, EXAMPLE, {"CGT": (473, 505), "AB": (317, 354), "PushPull": (370, 406)}),
    "delay 0..10": (
        {"delay": 10},
        EXAMPLE,
        {"CGT": (617, 661), "AB": (430, 481), "PushPull": (536, 581), "PushDIGing": None},
    ),
    "loss and delay": (
        {"loss": 0.3, "delay": 5},
        EXAMPLE,
        {"CGT": (542, 598), "AB": (377, 428), "PushPull": (450, 505), "PushDIGing": None},
    ),
    "split 2": ({"loss": 0.3}, SPLIT, {"CGT": (385, 463), "AB": (293, 357), "PushPull": (237, 309)}),
    "random edges": (
        {"loss": 0.3},
        RANDOM,
        {"CGT": (331, 396), "AB": (200, 297), "PushPull": (201, 306), "PushDIGing": None},
    ),
    "one peer": ({"loss": 0.3}, ONE_PEER, {"CGT": (374, 414)}),
    "awake": (
        {"awake": AWAKE},
        EXAMPLE,
        {"CGT": (1072, 1410), "AB": (550, 823), "PushPull": (733, 1044), "PushDIGing": None},
    ),
    "all": (MIXED, SPLIT, {"CGT": (1921, 2807)}),
    "all, bfloat16": ({**MIXED, "compressor": dg.compressors.bfloat16()}, SPLIT, {"CGT": (1921, 2807)}),
    "all, 4 bits": ({**MIXED, "compressor": dg.compressors.quantize(4)}, SPLIT, {"CGT": (1921, 2807)}),
    "all, top 1": ({**MIXED, "compressor": dg.compressors.top_k(1)}, SPLIT, {"CGT": (2225, 4487)}),
    "all, sign": ({**MIXED, "compressor": dg.compressors.sign()}, SPLIT, {"CGT": (2225, 4487)}),
    "all, random 1": ({**MIXED, "compressor": dg.compressors.random_k(1)}, SPLIT, {"CGT": (2225, 4487)}),
    "keep": ({"loss": 0.3, "push": "keep"}, EXAMPLE, {"CGT": (240, 275)}),
}
# Steps of the run, and how many of 20 seeds end within 1e-8: a step that is unstable now and then throws runs out
# again, so that the count depends on where they end, which the specification does not say; these lengths give its
# counts, but for one seed of the first row, which rounding decides: 19 in the specification and when a share is rounded
# before it is added to what is undelivered, 20 when both are one operation.
PUSH_SUM_CONVERGES = {"loss 0.3": (4000, (19, 20)), "delay 0..5": (3000, (4,)), "split 2": (3000, (3,))}


def check_band(name, method, band):
    links, graph, _ = BANDS[name]
    for seed in range(3):
        described = Links(**links, seed=seed)
        steps = 3000 if band is None else int(1.25 * band[1]) + 50
        found = distances(METHODS[method], described, graph, steps=steps, **problem_on(graph))
        if band is None:
            assert settles_at(found) == np.inf, seed
        else:
            assert 0.8 * band[0] <= settles_at(found) <= 1.25 * band[1], seed


@pytest.mark.parametrize("name", ["loss 0.7", "loss and delay"])
def test_random_rows_stay_in_the_bands_of_the_specification(name):
    check_band(name, "CGT", BANDS[name][2]["CGT"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), [(name, m) for name, row in BANDS.items() for m in row[2]])
def test_all_random_rows_stay_in_the_bands_of_the_specification(name, method):
    check_band(name, method, BANDS[name][2][method])


@pytest.mark.slow
@pytest.mark.parametrize("name", PUSH_SUM_CONVERGES)
def test_push_sum_converges_as_often_as_the_specification_says(name):
    (links, graph, _), (steps, counts) = BANDS[name], PUSH_SUM_CONVERGES[name]
    k8 = np.array(
        [
            settles_at(distances(METHODS["PushDIGing"], Links(**links, seed=seed), graph, steps=steps))
            for seed in range(20)
        ]
    )
    assert np.isfinite(k8).sum() in counts
    if name == "loss 0.3":
        assert (k8.min(), k8[np.isfinite(k8)].max()) == (163, 3735)


@cache
def digits():
    problem = dg.problems.logistic(data="digits", agents=5, partition="sorted", reg_weight=0.01, reg_power=3)
    x = problem.solve().x
    return EXAMPLE, {"problem": problem, "x0": np.full(problem.dim, 2.0), "minimum": x}


@dataclass(frozen=True)
class AllTies(dg.compressors.top_k):
    """Entries that the reference of the specification sends: more than k entries where the k-th largest has equals.

    Pixels that are always blank tie in digits. digrad sends k entries, whose bytes are those of the specification.
    """

    def code(self, values, chosen=None):
        size = abs(values)
        return values * (size >= jnp.sort(size, axis=1)[:, -self.k][:, None])


RANDOM_20 = [  # (links, iterations to 1e-8)
    (None, 583),
    (Links(loss=0.3), 755),
    (Links(loss=0.5), 981),
    (Links(loss=0.9), 4277),
    (Links(loss=Bursts(0.3, 5)), 1323),
    (Links(delay=5), 1685),
    (Links(compressor=dg.compressors.bfloat16()), 583),
    (Links(compressor=dg.compressors.quantize(4)), 583),
    (Links(compressor=dg.compressors.quantize(2)), 595),
    (Links(compressor=dg.compressors.sign()), 1185),
    (Links(compressor=dg.compressors.top_k(3)), 729),
    (Links(compressor=dg.compressors.top_k(1)), 1365),
    (Links(compressor=dg.compressors.random_k(3)), 579),
    (Links(compressor=dg.compressors.random_k(1)), 1928),
    (Links(loss=0.3, compressor=dg.compressors.bfloat16()), 755),
    (Links(loss=0.3, compressor=dg.compressors.quantize(4)), 753),
    (Links(loss=0.3, compressor=dg.compressors.quantize(2)), 761),
    (Links(loss=0.3, compressor=dg.compressors.sign()), 1230),
    (Links(loss=0.3, compressor=dg.compressors.top_k(3)), 877),
    (Links(loss=0.3, compressor=dg.compressors.top_k(1)), 1415),
    (Links(loss=0.3, compressor=dg.compressors.random_k(3)), 670),
    (Links(loss=0.3, compressor=dg.compressors.random_k(1)), 2571),
]
DIGITS = [  # (links, iterations to 1e-6)
    (None, 971),
    (Links(loss=0.3), 1212),
    (Links(loss=0.5), 1518),
    (Links(loss=Bursts(0.3, 10)), 3213),
    (Links(delay=5), 2284),
    (Links(awake=AWAKE), 5041),
    (Links(compressor=dg.compressors.bfloat16()), 971),
    (Links(compressor=dg.compressors.quantize(4)), 971),
    (Links(compressor=dg.compressors.quantize(2)), 924),
    (Links(compressor=dg.compressors.sign()), 4819),
    (Links(compressor=AllTies(4)), 2247),
    (Links(compressor=dg.compressors.top_k(4)), 2332),
    (Links(compressor=dg.compressors.random_k(4)), 5363),
]


def check_iterations(method, links, expected, problem, tolerance=1e-8):
    """Check how many iterations a run takes: exactly, where every bit of it follows from the specification."""
    graph, options = problem()
    steps, compressor = 800 if expected == np.inf else int(1.3 * expected), links and links.compressor
    is_drawn = isinstance(compressor, dg.compressors.random_k)  # entries, which the specification leaves open
    found = [
        settles_at(distances(method, one, graph, steps=steps, **options), tolerance)
        for one in ([replace(links, seed=seed) for seed in range(3)] if is_drawn else [links])
    ]
    if is_drawn and expected < np.inf:
        assert all(0.8 * expected <= k <= 1.25 * expected for k in found)
    else:
        # Two bits, and signs of push-sum, are so coarse that rounding decides: the transcribed equations take 590 to
        # 597 iterations instead of 595 when the start changes by 1e-15.
        is_coarse = compressor == dg.compressors.quantize(2) or (
            method.needs == {"column"} and compressor == dg.compressors.sign()
        )
        assert found[0] == pytest.approx(expected, rel=0.01 if is_coarse else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("links", "k8"), RANDOM_20, ids=repr)
def test_twenty_agents_need_the_iterations_of_the_specification(links, k8):
    check_iterations(dg.CGT(step_size=0.03, threshold=5.0), links, k8, random_20)


@pytest.mark.slow
def test_twenty_agents_with_random_edges_need_the_iterations_of_the_specification():
    graph, options = random_20()
    there = dg.graphs.random_edges(graph, 0.3, seed=0)
    found = distances(dg.CGT(step_size=0.03, threshold=5.0), Links(), there, steps=900, **options)
    assert settles_at(found) == 651


@pytest.mark.slow
@pytest.mark.parametrize(("links", "k6"), DIGITS, ids=repr)
def test_digits_need_the_iterations_of_the_specification(links, k6):
    check_iterations(dg.CGT(step_size=0.3, threshold=1.0), links, k6, digits, 1e-6)


@pytest.mark.slow
def test_digits_with_one_edge_per_step_need_the_iterations_of_the_specification():
    graph, options = digits()
    found = distances(
        dg.CGT(step_size=0.3, threshold=1.0), Links(), dg.graphs.split(graph, 7), steps=1200, **options
    )
    assert settles_at(found, 1e-6) == 940


@pytest.mark.slow
@pytest.mark.parametrize(
    ("links", "k8"),
    [
        (None, 547),
        (Links(compressor=dg.compressors.sign()), 549),
        (Links(compressor=dg.compressors.quantize(3)), 547),
        (Links(compressor=dg.compressors.quantize(4)), 547),
        (Links(compressor=dg.compressors.bfloat16()), 547),
        (Links(compressor=dg.compressors.quantize(2)), 545),
        (Links(compressor=dg.compressors.top_k(3)), 546),
        (Links(compressor=dg.compressors.random_k(3)), 535),
        (Links(compressor=dg.compressors.quantize(2), damping=1.0), np.inf),
        (Links(compressor=dg.compressors.top_k(3), damping=1.0), np.inf),
        (Links(compressor=dg.compressors.random_k(3), damping=1.0), np.inf),
    ],
    ids=repr,
)
def test_compressed_push_sum_needs_the_iterations_of_the_specification(links, k8):
    check_iterations(dg.PushDIGing(step_size=0.03), links, k8, random_20)


EXACT = ("sum", "self")
POLICIES = (("drop", "drop"), ("drop", "self"), ("renormalise", "renormalise"), ("last", "last"), EXACT)
NAIVE = {  # (method, loss): the error after 3000 steps of each policy; infinity where it is not finite
    ("CGT", 0.1): (0.47, 11, 2.5, 0.92, 6e-15),
    ("CGT", 0.3): (0.47, 13, 6.1, 3.0, 6e-15),
    ("CGT", 0.5): (0.47, 13, 290, 4.6, 4e-15),
    ("AB", 0.1): (0.47, 3.9, 1.1, 1.2, 1e-15),
    ("AB", 0.3): (0.47, 8.1, 2.2, 2.7, 1e-15),
    ("AB", 0.5): (0.47, 9.5, 3.3, 4.3, 1e-15),
    # The specification calls the third not finite: the median of 20 numbers, two of which are none. Seeds 16 and 17
    # diverge here too, the median of the others is 1.5, and that of seeds 0 to 4 is 1.04.
    ("PushDIGing", 0.1): (np.inf, np.inf, 1.5, 1.3, 2e-15),
    ("PushDIGing", 0.3): (np.inf, np.inf, 2.2, 2.4, 2e-15),
    ("PushDIGing", 0.5): (np.inf, np.inf, 5.4, 3.6, np.inf),
    ("SGP", 0.1): (np.inf, np.inf, 0.022, 0.018, 0.019),
    ("SGP", 0.3): (np.inf, np.inf, 0.08, 0.020, 0.035),
    ("SGP", 0.5): (np.inf, np.inf, 6.4, 0.030, np.inf),
}


def bias(method, loss, policy, seeds):
    """Return the median over the seeds of the error after 3000 steps."""
    methods, errors = {**METHODS, "SGP": dg.SGP(step_size=0.005)}, []
    for seed in range(seeds):
        links = Links(loss=loss, push=policy[0], pull=policy[1], seed=seed)
        found = distances(methods[method], links, steps=3001)
        errors.append(found[-1] if len(found) == 3001 else np.inf)
    return np.median(errors)


def check_bias(method, loss, policy, expected, seeds):
    found = bias(method, loss, policy, seeds)
    if expected < 1e-12:
        assert found < 5e-14
    else:
        assert found == expected or expected / 2 <= found <= 2 * expected


THROWN_AWAY = {"late": Links(delay=5, push="drop"), "asleep": Links(awake=AWAKE, push="drop")}


@pytest.mark.slow
@pytest.mark.parametrize("name", THROWN_AWAY)
def test_packets_thrown_away_because_they_come_late_bias_as_measured(name):
    links = THROWN_AWAY[name]
    naive, exact = (
        np.median([distances(METHODS["CGT"], replace(one, seed=s), steps=3001)[-1] for s in range(5)])
        for one in (links, replace(links, push="sum"))
    )
    assert 13 / 2 <= naive <= 2 * 13
    assert exact < 5e-14


# With 30 % loss, the errors of the first three policies, as they are with seed 0: of renormalising they spread
# from 0.6 to 18, the medians of seeds 0 to 4 are 2.4 and 4.7, and those of 20 seeds 1.8 and 5.7.
OTHER_PROBLEMS = {
    "twenty agents": (random_20, dg.CGT(step_size=0.03, threshold=5.0), (1.2, 15, 1.1)),
    "digits": (digits, dg.CGT(step_size=0.3, threshold=1.0), (1.6, 14, 10)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_PROBLEMS)
def test_naive_policies_are_biased_as_measured_on_other_problems(name):
    problem, method, biases = OTHER_PROBLEMS[name]
    graph, options = problem()

    def error(policy):
        links = Links(loss=0.3, push=policy[0], pull=policy[1])
        return distances(method, links, graph, steps=3001, **options)[-1]

    assert [error(policy) for policy in POLICIES[:3]] == pytest.approx(biases, rel=0.1)
    assert error(EXACT) < 5e-14


@pytest.mark.parametrize("policy", [("drop", "drop"), ("last", "last")], ids=str)
def test_naive_policies_are_biased_as_measured(policy):
    check_bias("CGT", 0.3, policy, NAIVE["CGT", 0.3][POLICIES.index(policy)], seeds=5)


RENORMALISED = ("renormalise", "renormalise")
# Errors from 1.5 to 290: the median of seeds 0 to 4 is 14, that of the 20 seeds of the specification 6.1, as it says.
HEAVY_TAILS = {("CGT", 0.3, RENORMALISED): 20}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "loss"), NAIVE)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_all_naive_policies_are_biased_as_measured(method, loss, policy):
    seeds = HEAVY_TAILS.get((method, loss, policy), 5)
    check_bias(method, loss, policy, NAIVE[method, loss][POLICIES.index(policy)], seeds=seeds)
