"""Runs in TensorBoard, read back with its own reader."""

import pytest

import digrad as dg


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


@pytest.fixture
def example():
    return dg.problems.example_quartic(), dg.Network(dg.graphs.example5())


def test_callback_writes_the_figures_of_every_chunk(tmp_path, example, chunks_of):
    chunks_of(5)
    with dg.TensorBoard(tmp_path) as board:
        trace = dg.simulate(dg.CGT(0.05, 5.0), *example, steps=20, x0=[3.0, 3.0], callback=board)
    found = scalars(board.folder_of(trace.name))
    assert set(found) == {"loss", "grad_norm", "consensus_error"}
    assert [step for step, _ in found["loss"]] == [5, 10, 15, 20]


def test_trace_is_written_row_by_row_save_what_is_not_finite(tmp_path, example):
    trace = dg.simulate(dg.AB(0.05), *example, steps=20, x0=[10.0, 10.0])
    assert trace.verdict == "diverged"
    with dg.TensorBoard(tmp_path) as board:
        board.add(trace)
    found = scalars(board.folder_of("AB"))
    assert found["loss"][0] == (0, pytest.approx(trace.loss[0], rel=1e-6))
    assert all(value < 3.5e38 for _, value in found["loss"])
    assert [step for step, _ in found["bytes_sent"]] == trace.k.tolist()
