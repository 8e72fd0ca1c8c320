"""Bytes that optimizers report are those that leave the host."""

import json
from pathlib import Path

import pytest

from host_runs import Run
from namespaces import hosts, needs_namespaces
from torch_processes import WORKERS

pytestmark = [*needs_namespaces, pytest.mark.long]


@pytest.mark.parametrize("key", [True, False], ids=["curve", "plain"])
def test_counter_of_the_interface_agrees_within_five_percent(key: bool, tmp_path: Path) -> None:
    with hosts(2) as machines:
        run = Run(machines, tmp_path, key=key, script=(str(WORKERS / "wire_bytes.py"), str(tmp_path)))
        run.start_all()
        for process in run.processes.values():
            assert process.wait(280) == 0, run.logs()
    for file in run.files("bytes-*"):
        found = json.loads(file.read_text())
        assert len(found) == 8
        for name, (reported, counted) in found.items():
            assert reported > 0
            assert abs(counted - reported) <= 0.05 * reported, (name, reported, counted)
