"""Features that users of torch optimizers expect, in one process and in several."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from digrad import AB, CGT, SGP, SONATA, CDSGDNesterov
from digrad.core.net import bindings
from digrad.errors import ArgumentError, NonFiniteError
from digrad.graphs import complete, from_edges, ring, split
from digrad.links import FixedDelay, Links, compressors
from digrad.network import Network
from digrad.schedules import InverseSqrt
from digrad.torch import ProcessNetwork, Replicas, Shard, recalibrate
from digrad.torch.engines.replica_engine import ReplicaEngine
from digrad.torch.launch import launch
from torch_processes import run

NETWORK = Network(from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 2)]))
METHOD = CGT(step_size=0.1, threshold=1.0)


def gradients(replicas: Replicas, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for model in replicas.models:
        model(torch.randn(6, 4, generator=generator)).square().mean().backward()


def test_features_work_between_processes(tmp_path: Path) -> None:
    run("features.py", 3, str(tmp_path))
    stored = [load_file(tmp_path / f"large{agent}.st") for agent in range(3)]
    starts = torch.cat([one["start"] for one in stored])
    net = ReplicaEngine(NETWORK, bindings(METHOD), starts.shape[1], torch.device("cpu"))
    assert torch.equal(torch.cat([one["end"] for one in stored]), net.pull(starts))
    changing = Network(split(NETWORK.union, 2), links=Links(compressor=compressors.bfloat16()))
    models = []
    for agent in range(3):
        torch.manual_seed(agent)
        models.append(nn.Linear(1000, 700))
    replicas = Replicas(models, CGT(step_size=0.05, threshold=1.0), changing)
    for _ in range(4):
        replicas.step()
    ends = [load_file(tmp_path / f"changing{agent}.st")["end"] for agent in range(3)]
    assert torch.equal(torch.cat(ends), replicas.estimate())


def test_agent_may_be_a_ddp_group(tmp_path: Path) -> None:
    run("groups_of_processes.py", 4, str(tmp_path))
    x = {path.stem: load_file(path)["x"] for path in tmp_path.glob("*.safetensors")}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    replicas = Replicas(model, CGT(step_size=0.1, threshold=0.5), Network(from_edges(2, [(0, 1), (1, 0)])))
    for k in range(5):
        replicas.zero_grad()
        for agent, one in enumerate(replicas.models):
            data = torch.randn(8, 5, generator=torch.Generator().manual_seed(10 * agent + k)).double()
            one(data).square().mean().backward()
        replicas.step()
    for agent in range(2):
        assert torch.equal(x[f"{agent}-0"], x[f"{agent}-1"])
        assert torch.allclose(x[f"{agent}-0"][0], replicas.estimate()[agent], rtol=0, atol=1e-14)


def test_looking_whether_a_run_is_over_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas, told = Replicas(nn.Linear(4, 2), METHOD, NETWORK), []
    assert replicas.preempted is False
    monkeypatch.setattr(replicas, "_preemption", SimpleNamespace(is_over=True, enable=told.append))
    assert replicas.preempted is True
    assert told == []
    replicas.end_when_preempted()  # which a loop says that has no Checkpoints
    assert told == [None]


@pytest.mark.parametrize("method", [METHOD, CDSGDNesterov(step_size=0.1)], ids=lambda one: type(one).__name__)
def test_weights_written_later_are_an_error_and_never_dropped(method: Any) -> None:
    replicas = Replicas(nn.Linear(4, 2), method, Network(complete(3)))
    gradients(replicas)
    replicas.step()
    before = replicas.estimate().clone()
    with torch.no_grad():
        replicas.models[1].bias.fill_(7.0)  # pyright: ignore[reportCallIssue]
    gradients(replicas)
    for call in (replicas.step, replicas.averaged_parameters().__enter__):
        with pytest.raises(ArgumentError, match=r"the parameters of agent 1 were changed since"):
            call()
    replicas.restart_tracking(before)  # as the message says
    gradients(replicas)
    replicas.step()


@pytest.mark.parametrize("links", [None, Links(loss=0.3), Links(compressor=compressors.bfloat16())], ids=repr)
def test_copy_of_replicas_goes_on_as_they_do_and_apart_from_them(links: Any) -> None:
    def train(replicas: Replicas) -> torch.Tensor:
        for seed in range(3):
            replicas.zero_grad()
            gradients(replicas, seed)
            replicas.step()
        return replicas.estimate().clone()

    network = Network(NETWORK.union, links=links)
    replicas = Replicas(
        nn.Linear(4, 2), METHOD, network, groups=lambda model: [{"params": model.parameters()}]
    )
    before = train(replicas)
    replicas.param_groups[0]["lr"] = 0.05
    gradients(replicas)
    copied = copy.deepcopy({"replicas": replicas, "models": replicas.models})
    assert copied["replicas"].models is copied["models"]
    copied = copied["replicas"]
    assert torch.equal(copied.gradients, replicas.gradients)
    after = train(copied)
    assert torch.equal(replicas.estimate(), before)
    assert torch.equal(train(replicas), after)
    assert (copied.k, copied.bytes_sent) == (replicas.k, replicas.bytes_sent)


def test_tied_parameters_are_counted_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    replicas = Replicas(model, METHOD, NETWORK)
    assert replicas.estimate().shape == (3, 16 + 4 + 4)
    gradients(replicas)
    replicas.step()
    assert all(one[0].weight is one[1].weight for one in replicas.models)


def test_channels_last_weights_keep_their_layout_and_train_alike() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2)).double()
    other = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    engines = [Replicas(plain, METHOD, NETWORK), Replicas(other, METHOD, NETWORK)]
    for replicas in engines:
        for k in range(3):
            replicas.zero_grad()
            for agent, model in enumerate(replicas.models):
                images = torch.rand(
                    2, 3, 6, 6, generator=torch.Generator().manual_seed(agent + 10 * k)
                ).double()
                model(images).square().mean().backward()
            replicas.step()
    weight = engines[1].models[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert torch.allclose(weight, engines[0].models[0][0].weight, atol=1e-12)


def test_groups_have_their_own_rate_and_decay_after_a_common_clip() -> None:
    model = nn.Linear(4, 1, bias=True).double()
    replicas = Replicas(
        model, METHOD, NETWORK, groups=lambda m: [{"params": [m.weight]}, {"params": [m.bias], "lr": 0.0}],
        weight_decay=0.5,
    )  # fmt: skip
    replicas.param_groups[1]["weight_decay"] = 0.0
    before = replicas.estimate().clone()
    replicas.step()
    assert torch.equal(replicas.estimate()[:, 4], replicas._engine.pull(before)[:, 4])
    assert torch.equal(replicas.state_fields.g[:, :4], 0.5 * before[:, :4])
    assert (replicas.state_fields.g[:, 4] == 0).all()


def test_scheduler_sets_the_step_size() -> None:
    replicas = Replicas(nn.Linear(4, 1), METHOD, NETWORK)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(replicas, 0.5)
    rates = []
    for _ in range(3):
        rates.append(replicas._method_now().step_size)
        gradients(replicas)
        replicas.step()
        scheduler.step()
    assert rates == [0.1, 0.05, 0.025]


def test_schedule_of_the_method_and_scheduler_exclude_each_other() -> None:
    replicas = Replicas(nn.Linear(4, 1), AB(step_size=InverseSqrt(scale=0.1)), NETWORK)
    replicas.step()
    replicas.param_groups[0]["lr"] = 0.3
    with pytest.raises(ArgumentError, match="is a schedule; use one of the two"):
        replicas.step()


def test_accumulated_gradients_and_closures_are_one_step() -> None:
    torch.manual_seed(0)
    first = Replicas(nn.Linear(4, 1), METHOD, NETWORK)
    second = Replicas(copy.deepcopy(first.models[0]), METHOD, NETWORK)
    first.zero_grad()
    gradients(first, 1)
    gradients(first, 2)
    first.step()

    def closure() -> float:
        second.zero_grad()
        gradients(second, 1)
        gradients(second, 2)
        return 7.0

    assert second.step(closure) == 7.0
    assert torch.equal(first.estimate(), second.estimate())


def test_unused_and_missing_gradients_are_zero() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "unused": nn.Linear(4, 1)})
    replicas = Replicas(model, METHOD, NETWORK)
    for one in replicas.models:
        one.zero_grad()  # sets the gradients to None
        one["used"](torch.ones(1, 4)).sum().backward()
    replicas.step()
    assert (replicas.state_fields.g[:, :5] == 1).all()
    assert (replicas.state_fields.g[:, 5:] == 0).all()


def test_frozen_parameters_are_left_alone_and_may_not_be_unfrozen_later() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    replicas = Replicas(model, METHOD, NETWORK)
    before = replicas.models[0][0].weight.clone()
    gradients(replicas)
    replicas.step()
    assert replicas.estimate().shape == (3, 5)
    assert torch.equal(replicas.models[0][0].weight, before)
    replicas.models[0][0].requires_grad_(True)
    with pytest.raises(ArgumentError, match="was frozen when the optimizer was built"):
        replicas.step()


def test_state_dict_goes_on_bitwise() -> None:
    torch.manual_seed(0)
    first = Replicas(nn.Linear(4, 2), SGP(step_size=0.1), NETWORK)
    second = Replicas(nn.Linear(4, 2), SGP(step_size=0.1), NETWORK)
    for k in range(4):
        first.zero_grad()
        gradients(first, k)
        first.step()
        if k == 1:
            stored = copy.deepcopy(first.state_dict())
    second.load_state_dict(stored)
    for k in (2, 3):
        second.zero_grad()
        gradients(second, k)
        second.step()
    assert all(torch.equal(a, b) for a, b in zip(first.state_fields, second.state_fields, strict=True))
    assert second.k == 4


def test_state_dict_of_another_method_is_refused() -> None:
    stored = Replicas(nn.Linear(4, 2), AB(step_size=0.1), NETWORK).state_dict()
    with pytest.raises(ArgumentError, match="is of AB, but the method is CGT"):
        Replicas(nn.Linear(4, 2), METHOD, NETWORK).load_state_dict(stored)


def test_recalibrated_statistics_are_those_of_the_data_without_dropout() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))
    data = torch.randn(64, 2) * 3 + 5
    model.train()
    model[1].eval()  # as someone who fine-tunes with frozen statistics would
    recalibrate(model, [data])
    assert torch.allclose(model[1].running_mean, data.mean(0), atol=1e-5)
    assert torch.allclose(model[1].running_var, data.var(0), rtol=1e-5)
    assert [module.training for module in model.modules()] == [True, True, False]
    assert model[1].momentum == 0.1
    before = model[1].running_mean.clone()
    with pytest.raises(ArgumentError, match="`batches` of recalibrate is empty"):
        recalibrate(model, [])
    assert torch.equal(model[1].running_mean, before)


@pytest.mark.parametrize(
    "convert",
    [lambda m: m.double(), lambda m: m.to(memory_format=torch.channels_last)],
    ids=["dtype", "layout"],
)
def test_model_converted_after_the_optimizer_was_built_is_an_error(convert: Any) -> None:
    replicas = Replicas(nn.Conv2d(3, 4, 2), METHOD, NETWORK)
    convert(replicas.models[1])
    with pytest.raises(ArgumentError, match="has been moved or converted since the optimizer was built"):
        replicas.step()


@pytest.mark.parametrize("method", [SGP, SONATA])
def test_average_of_a_push_sum_method_is_the_one_it_conserves(method: Any) -> None:
    replicas = Replicas([nn.Linear(4, 1).double() for _ in range(3)], method(step_size=0.1), NETWORK)
    start = replicas.average("weighted")
    for _ in range(3):
        replicas.zero_grad()  # without a gradient the average does not move
        replicas.step()
    state = replicas.state_fields
    assert (state.w - 1).abs().max() > 0.1
    assert torch.allclose(replicas.average("weighted"), start, rtol=0, atol=1e-15)
    distance = replicas.estimate() - start
    assert replicas.consensus_error("weighted") == pytest.approx(
        float(distance.square().sum() / 3) ** 0.5, rel=1e-12
    )


def test_average_of_push_sum_is_where_the_agents_are_though_weights_are_under_way() -> None:
    start = nn.Linear(4, 1).double()
    network = Network(NETWORK.union, links=Links(delay=FixedDelay(2)))
    replicas = Replicas(start, SGP(step_size=0.1), network)
    for _ in range(5):
        replicas.zero_grad()  # without a gradient agents that agree stay where they are
        replicas.step()
    assert float(replicas.state_fields.w.sum()) < 2.5
    assert torch.allclose(
        replicas.average("weighted"), nn.utils.parameters_to_vector(start.parameters()), atol=1e-15
    )
    assert replicas.consensus_error("weighted") < 1e-15


def test_average_is_for_looking_at_only() -> None:
    replicas = Replicas([nn.Linear(4, 1) for _ in range(3)], METHOD, NETWORK)
    start = replicas.estimate().clone()
    with replicas.averaged_parameters():
        shown = [torch.cat([p.flatten() for p in model.parameters()]) for model in replicas.models]
        assert all(torch.allclose(one, replicas.average(), atol=1e-7) for one in shown)
        with pytest.raises(ArgumentError, match="`step` of Replicas must not be called inside averaged_"):
            replicas.step()
        with pytest.raises(ArgumentError, match="`restart_tracking` of Replicas must not be called inside"):
            replicas.restart_tracking()
        with pytest.raises(ArgumentError, match="cannot be nested"), replicas.averaged_parameters():
            pass
    assert torch.equal(replicas.estimate(), start)
    replicas.step()


@pytest.mark.parametrize(("name", "value"), [("lr", -0.1), ("weight_decay", float("nan"))])
def test_impossible_settings_of_a_group_are_refused(name: str, value: float) -> None:
    replicas = Replicas(nn.Linear(4, 1), METHOD, NETWORK)
    replicas.param_groups[0][name] = value
    with pytest.raises(ArgumentError, match=f"`{name}` of a parameter group of Replicas must be at least 0"):
        replicas.step()


def test_gradient_that_is_not_finite_names_agent_and_step_and_changes_nothing() -> None:
    replicas = Replicas(nn.Linear(4, 1), METHOD, NETWORK)
    gradients(replicas)
    replicas.step()
    before = copy.deepcopy(replicas.state_dict())
    replicas.models[2].weight.grad[0, 1] = float("nan")
    with pytest.raises(NonFiniteError, match="step 1: the gradient of agent 2 is not finite"):
        replicas.step()
    assert replicas.k == 1
    after = replicas.state_dict()["state"]["fields"]
    assert all(torch.equal(value, after[name]) for name, value in before["state"]["fields"].items())


def test_gradient_that_is_not_finite_is_replaced_by_the_one_before_on_request() -> None:
    replicas = Replicas(nn.Linear(4, 1), METHOD, NETWORK, non_finite="repeat")
    gradients(replicas)
    replicas.step()
    last = replicas.state_fields.g.clone()
    replicas.zero_grad()
    gradients(replicas, 1)
    replicas.models[2].weight.grad.fill_(float("inf"))
    with pytest.warns(
        RuntimeWarning, match="step 1: the gradient of agent 2 is not finite; the previous one"
    ):
        replicas.step()
    assert torch.equal(replicas.state_fields.g[2], last[2])
    assert not torch.equal(replicas.state_fields.g[0], last[0])


def test_state_that_overflows_is_an_error_that_names_agent_and_step() -> None:
    replicas = Replicas(nn.Linear(4, 1), AB(step_size=1e30), NETWORK)
    replicas.models[1].weight.grad.fill_(1e30)
    with pytest.raises(NonFiniteError, match="step 0: the state of agent 1 is no longer finite; lower `lr`"):
        replicas.step()


def test_sum_of_large_gradients_is_not_mistaken_for_infinity() -> None:
    replicas = Replicas(nn.Linear(4, 1), METHOD, NETWORK)
    replicas.models[1].weight.grad.fill_(3e38)
    replicas.step()
    assert replicas.k == 1


def test_digraph_will_do_as_a_network() -> None:
    assert Replicas(nn.Linear(2, 1), METHOD, ring(3)).estimate().shape == (3, 3)


def test_shards_draw_what_the_simulator_draws() -> None:
    from digrad.sampling import WithReplacement

    indices = [np.arange(10), np.arange(10, 17)]
    shard = Shard(indices, agent=1, batch_size=4, seed=9)
    expected = 10 + WithReplacement((10, 7), 4, 9).batches(5, 1)[0, 1]
    assert shard.batch(5).tolist() == expected.tolist()
    with pytest.raises(ArgumentError, match="too few for batches of 8"):
        Shard(indices, agent=0, batch_size=8, replacement=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": CGT}, "must be a method such as"),
        (
            {"method": CGT(step_size=0.1, threshold=np.ones((5, 1)))},
            r"`threshold` of CGT must be a number, or a column of shape \(3, 1\), one per agent",
        ),
        ({"model": [nn.Linear(2, 1)]}, "must be one module, or 3 different ones"),
        ({"model": nn.Flatten()}, "`params` of Replicas is empty: the model has no parameters"),
        ({"non_finite": "skip"}, "`non_finite` of Replicas must be one of"),
        ({"model": nn.Linear(2, 1).half()}, "must be float32 or float64"),
        ({"network": Network(ring(3), partial=True)}, "is one step of a sequence"),
        ({"weight_decay": -1.0}, "`weight_decay` of Replicas must be positive"),
    ],
)
def test_bad_arguments_are_refused_with_the_remedy(arguments: dict, message: str) -> None:
    settings = {"model": nn.Linear(2, 1), "method": METHOD, "network": NETWORK, **arguments}
    with pytest.raises(ArgumentError, match=message):
        Replicas(settings.pop("model"), settings.pop("method"), settings.pop("network"), **settings)


def test_parameters_cannot_be_added_later() -> None:
    replicas = Replicas(nn.Linear(2, 1), METHOD, NETWORK)
    with pytest.raises(ArgumentError, match="cannot be added later"):
        replicas.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_unknown_interface_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`interface` of ProcessNetwork must be one of"):
        ProcessNetwork(ring(3), interface="nowhere0")


def test_process_network_outside_of_a_launch_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DIGRAD_GRAPH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ArgumentError, match="digrad launch --agents N SCRIPT"):
        ProcessNetwork(ring(3))
    with pytest.raises(ArgumentError, match="digrad launch --graph FILE"):
        ProcessNetwork()


def test_launch_checks_its_arguments(tmp_path: Path) -> None:
    from digrad import graphs

    graphs.write(ring(3), tmp_path / "graph.txt")
    with pytest.raises(ArgumentError, match="has 3 agents, but 4 processes"):
        launch(__file__, agents=4, graph=tmp_path / "graph.txt")
    with pytest.raises(ArgumentError, match="does not exist"):
        launch(tmp_path / "none.py", agents=3)
    with pytest.raises(ArgumentError, match="`endpoint` of launch is required for 2 nodes"):
        launch(__file__, agents=3, nodes=2)
