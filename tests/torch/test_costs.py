"""Costs of the torch engine, measured between real processes."""

import pytest

from benchmarks.torch_deadline import deadline_row
from benchmarks.torch_exchange import run_torch_bench


@pytest.mark.slow
def test_agent_needs_at_most_fourteen_buffers() -> None:
    rows = {row.name: row for row in run_torch_bench(repeats=1, dimension=4_000_000)}
    assert set(rows) == {
        "exchange of one buffer",
        "the same over gloo",
        "the same over ZeroMQ, as between machines",
        "the same encrypted and authenticated",
        "exchange instead of the all_reduce of DDP",
        "CGT step without mixing",
        "communication hidden behind 0.5 s of compute",
        "peak memory of an agent",
    }
    memory = rows["peak memory of an agent"]
    assert 8.0 < memory.ours <= 14.0, (
        memory
    )  # x, y, g, the gradient, two messages of two from two neighbours, and what a step computes with


@pytest.mark.slow
def test_promises_of_speed_are_kept() -> None:
    rows = {row.name: row for row in (*run_torch_bench(repeats=9), deadline_row())}
    assert not [row for row in rows.values() if not row.ok]
