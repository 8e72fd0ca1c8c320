"""Bytes that optimizers report are those that leave the host."""

import json
from pathlib import Path

import pytest

from digrad.torch.transport.curve_keys import make_key
from namespaces import hosts, needs_namespaces
from torch_processes import run

pytestmark = [*needs_namespaces, pytest.mark.long]


def test_counter_of_the_interface_agrees_within_five_percent(tmp_path: Path) -> None:
    """In the clear and encrypted, with and without a deadline, in full and compressed."""
    make_key(tmp_path / "run.key")
    with hosts(2) as machines:
        run("wire_bytes.py", 2, str(tmp_path), hosts=machines)
    for agent in range(2):
        found = json.loads((tmp_path / f"bytes-{agent}").read_text())
        assert len(found) == 16
        for name, (reported, counted) in found.items():
            assert reported > 0
            assert abs(counted - reported) <= 0.05 * reported, (name, reported, counted)
