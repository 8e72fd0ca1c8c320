"""Metrics of steps."""

import json
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from digrad.errors import ArgumentError
from digrad.torch.engines.step_metrics import StepMetrics
from digrad.torch.launch import METRICS_VARIABLE

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


def test_tensorboard_has_what_the_lines_have(tmp_path, monkeypatch):
    monkeypatch.setenv(METRICS_VARIABLE, str(tmp_path))
    metrics = StepMetrics(0, NET)
    metrics.write(1)
    metrics.close()
    line = json.loads((tmp_path / "agent-0.jsonl").read_text())
    log = EventAccumulator(str(tmp_path / "tensorboard" / "agent-0")).Reload()
    assert set(log.Tags()["scalars"]) == {"seconds", "waited", "bytes", "late"}
    assert log.Scalars("seconds")[0].value == pytest.approx(line["seconds"], rel=1e-6)


def test_what_the_user_logs_is_in_the_line_of_the_next_step(tmp_path, monkeypatch):
    monkeypatch.setenv(METRICS_VARIABLE, str(tmp_path))
    metrics = StepMetrics(0, NET)
    metrics.log({"loss": torch.tensor(0.5), "accuracy": 1})
    metrics.log({"accuracy": float("nan")})
    metrics.write(1)
    metrics.write(2)
    metrics.close()
    first, second = map(json.loads, (tmp_path / "agent-0.jsonl").read_text().splitlines())
    assert (first["step"], first["loss"], first["accuracy"]) == (1, 0.5, None)
    assert "loss" not in second
    log = EventAccumulator(str(tmp_path / "tensorboard" / "agent-0")).Reload()
    assert [event.value for event in log.Scalars("loss")] == [0.5]
    with pytest.raises(ArgumentError, match="`seconds` of log is what every line of --metrics has"):
        metrics.log({"seconds": 1.0})
