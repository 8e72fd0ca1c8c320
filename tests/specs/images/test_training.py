import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import digrad as dg
from digrad.errors import CheckpointError
from digrad.schedules import InverseSqrt
from digrad.specs.images.training import Training, TrainingPlan, train
from image_problems import tiny_problem

GRAPH = dg.graphs.example5()
NETWORK = dg.Network(GRAPH)
PLAN = TrainingPlan(steps=6, batch_size=4, record_every=3, evaluate=20, evaluate_last=20, checkpoint_every=2)
CGT = dg.CGT(step_size=0.05, threshold=10.0)
METHODS = (
    CGT,
    dg.AB(step_size=0.05),
    dg.CDSGD(step_size=0.05),
    dg.CDSGDPolyak(step_size=0.05),
    dg.CDSGDNesterov(step_size=0.05),
    dg.DAMSGrad(step_size=1e-3),
    dg.DAdaGrad(step_size=1e-3),
)


class Killed(BaseException):
    pass


@contextmanager
def killed_before(step: int) -> Iterator[None]:
    """End a run as a kill would, before it takes its ``step``-th step."""
    taken, take = iter(range(step)), Training.step

    def take_or_end(training: Training) -> None:
        if next(taken, None) is None:
            raise Killed
        take(training)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):  # noqa: PT012
        patch.setattr(Training, "step", take_or_end)
        yield


def assert_same_run(first, second):
    assert first.columns.keys() == second.columns.keys()
    for name, column in first.columns.items():
        assert column.tobytes() == second.columns[name].tobytes(), name
    assert first.final_x.tobytes() == second.final_x.tobytes()
    assert first.facts["last"] == second.facts["last"]


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, id=name, marks=() if name in ("CGT", "DAMSGrad") else pytest.mark.slow)
        for method in METHODS
        for name in [type(method).__name__]
    ],
)
def test_training_resumes_to_the_same_bits_when_killed(method, tmp_path):
    problem = tiny_problem()
    whole = train(method, problem, NETWORK, PLAN)
    plan = dataclasses.replace(PLAN, checkpoint=tmp_path / "one.safetensors")
    with killed_before(5):
        train(method, problem, NETWORK, plan)
    assert_same_run(train(method, problem, NETWORK, plan), whole)


@pytest.mark.parametrize(
    ("method", "network"),
    [
        pytest.param(
            CGT,
            dg.Network(GRAPH, links=dg.Links(compressor=dg.compressors.bfloat16())),
            marks=pytest.mark.slow,
        ),
        pytest.param(CGT, dg.Network(dg.graphs.every(2, GRAPH)), marks=pytest.mark.slow),
        (CGT, dg.Network(dg.graphs.split(GRAPH, 2), links=dg.Links(compressor=dg.compressors.bfloat16()))),
        (dg.CGT(step_size=InverseSqrt(0.05), threshold=InverseSqrt(10.0)), NETWORK),
    ],
    ids=["rounded links", "local steps", "rounded links of a periodic network", "schedules"],
)
def test_training_resumes_to_the_same_bits_when_links_network_or_method_have_a_past(
    method, network, tmp_path
):
    problem = tiny_problem()
    whole = train(method, problem, network, PLAN)
    plan = dataclasses.replace(PLAN, checkpoint=tmp_path / "one.safetensors")
    with killed_before(5):
        train(method, problem, network, plan)
    assert_same_run(train(method, problem, network, plan), whole)


@pytest.fixture(scope="module")
def whole():
    """An undisturbed run."""
    return train(CGT, tiny_problem(), NETWORK, PLAN)


def test_full_disk_costs_the_checkpoint_but_not_the_training(whole, tmp_path, full_disk):
    problem, path = tiny_problem(), tmp_path / "one.safetensors"
    with (
        full_disk(after=100),
        pytest.warns(UserWarning, match=r"CGT goes on without a checkpoint at k = [24]: .*one\.safetensors"),
    ):
        trace = train(CGT, problem, NETWORK, dataclasses.replace(PLAN, checkpoint=path))
    assert_same_run(trace, whole)
    assert list(tmp_path.iterdir()) == []


def test_training_refuses_the_checkpoint_of_another_run(tmp_path):
    plan = dataclasses.replace(PLAN, checkpoint=tmp_path / "one.safetensors")
    with killed_before(3):
        train(CGT, tiny_problem(), NETWORK, plan)
    with pytest.raises(CheckpointError, match=r"belongs to another run.*method"):
        train(dg.CGT(step_size=0.1, threshold=10.0), tiny_problem(), NETWORK, plan)


def test_training_records_what_its_columns_say(whole):
    assert whole.k.tolist() == [0, 3, 6]
    assert whole.columns["epoch"].tolist() == pytest.approx([0, 0.6, 1.2])
    assert np.isfinite(whole.loss).all()
    assert np.isnan(whole.fraction_clipped[0])
    assert (whole.columns["tracker_norm"][1:] > 0).all()
    per_step = 2 * 7 * 4 * whole.final_x.shape[1]  # x and y over seven edges in float32
    assert whole.bytes_sent.tolist() == [0, 3 * per_step, 6 * per_step]


LATE = dg.Links(
    loss=0.2, clock=dg.links.Clock(compute=[1, 1, 1, 1, 3], latency=dg.links.Uniform(0.0, 1.0), deadline=1.5)
)


def test_what_the_network_of_a_training_draws_follows_its_seed():
    problem, network = tiny_problem(), dg.Network(GRAPH, links=LATE)
    networks = [
        Training(CGT, problem, network, dataclasses.replace(PLAN, seed=seed), "CGT").network
        for seed in (0, 1, 2)
    ]
    assert networks[0] is network
    assert len({one.content_hash for one in networks}) == 3


def test_training_records_packets_and_simulated_seconds_and_names_the_slowest(tmp_path):
    problem, network = tiny_problem(), dg.Network(GRAPH, links=LATE)
    whole = train(CGT, problem, network, PLAN)
    assert whole.seconds_simulated.tolist() == [0.0, 4.5, 9.0]  # agent 4 keeps no deadline
    assert (whole.columns["delivered"][1:] < 1).all()
    assert whole.columns["mass_error"].max() < 1e-4
    assert (whole.columns["in_transit"][1:] > 0).all()
    assert whole.facts["slowest"]["agents"][0][0] == 4
    plan = dataclasses.replace(PLAN, checkpoint=tmp_path / "one.safetensors")
    with killed_before(5):
        train(CGT, problem, network, plan)
    resumed = train(CGT, problem, network, plan)
    assert_same_run(resumed, whole)
    assert resumed.facts["slowest"] == whole.facts["slowest"]


def test_training_ends_with_a_verdict_when_it_diverges():
    trace = train(dg.AB(step_size=1e30), tiny_problem(norm="none"), NETWORK, PLAN)
    assert trace.verdict == "diverged"
    assert trace.diverged_at == trace.steps == trace.k[-1]
    assert math.isinf(trace.loss[-1])
    assert trace.facts["last"] is None


def test_training_learns_generated_images():
    plan = dataclasses.replace(PLAN, steps=20, batch_size=8, record_every=20)
    trace = train(CGT, tiny_problem(norm="group"), NETWORK, plan)
    assert trace.columns["test_accuracy"][-1] > 0.5


def test_training_leaves_the_random_state_of_torch_alone():
    before = torch.random.get_rng_state()
    train(CGT, tiny_problem(), NETWORK, dataclasses.replace(PLAN, steps=1))
    assert torch.equal(torch.random.get_rng_state(), before)
