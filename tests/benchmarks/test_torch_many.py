"""Many agents on one machine."""

import pytest

pytest.importorskip("torch")

from benchmarks.torch_many import many_rows


@pytest.mark.slow
def test_forty_agents_start_and_step() -> None:
    start, step, memory = many_rows()
    assert start.name == "start of 40 agents"
    assert 0 < step.ours < 1e3 * start.ours
    assert 50 < memory.ours < 500
