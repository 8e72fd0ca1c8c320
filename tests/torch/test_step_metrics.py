import json
from types import SimpleNamespace

import pytest

from digrad.torch.step_metrics import METRICS_VARIABLE, StepMetrics

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
    lines = (tmp_path / "agent-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1]
