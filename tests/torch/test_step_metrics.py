"""What steps have cost, and how far the agents are apart."""

import json
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from digrad.torch.launch import METRICS_VARIABLE
from digrad.torch.step_metrics import StepMetrics

NET = SimpleNamespace(bytes_sent=0, waited=0.0, late=0)


def test_full_disk_costs_the_metrics_but_not_the_step(tmp_path, monkeypatch, full_disk):
    monkeypatch.setenv(METRICS_VARIABLE, str(tmp_path))
    metrics = StepMetrics(0, NET)
    metrics.write(1)
    size = (tmp_path / "agent-0.jsonl").stat().st_size
    with full_disk(after=size):
        with pytest.warns(UserWarning, match=r"step 2: .*agent-0\.jsonl cannot be written .*no more metrics"):
            metrics.write(2)
        metrics.write(3)
    metrics.close()
    lines = (tmp_path / "agent-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1]


@pytest.mark.parametrize("dimension", [3, 1000, 100_000])
def test_consensus_error_is_known_within_a_few_percent_from_sketches(dimension, tmp_path, monkeypatch):
    monkeypatch.setenv(METRICS_VARIABLE, str(tmp_path))
    agents = [StepMetrics(agent, NET) for agent in range(5)]
    x = torch.randn(5, dimension, generator=torch.Generator().manual_seed(1)) + 100.0
    sketches = [metrics.sketch(row[None]) for metrics, row in zip(agents, x, strict=True)]
    for metrics in agents:
        metrics.write(100, sketches)
        metrics.close()
    expected = float((x - x.mean(0)).square().sum(1).mean().sqrt())
    for agent in range(5):
        line = json.loads((tmp_path / f"agent-{agent}.jsonl").read_text())
        assert line["consensus_error"] == pytest.approx(expected, rel=0.15)
        log = EventAccumulator(str(tmp_path / "tensorboard" / f"agent-{agent}")).Reload()
        assert log.Scalars("consensus_error")[0].value == pytest.approx(line["consensus_error"], rel=1e-6)
        assert set(log.Tags()["scalars"]) == {"seconds", "waited", "bytes", "late", "consensus_error"}


def test_no_distance_is_told_unless_all_agents_left_a_sketch(tmp_path, monkeypatch):
    monkeypatch.setenv(METRICS_VARIABLE, str(tmp_path))
    metrics = StepMetrics(0, NET)
    metrics.write(100, [[0.0], None])
    metrics.close()
    assert "consensus_error" not in json.loads((tmp_path / "agent-0.jsonl").read_text())
