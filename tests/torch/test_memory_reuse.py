"""Memory of the large arrays of a step: used again, and never twice at the same time."""

import contextlib
import resource

import torch

from digrad import CGT, Network
from digrad.graphs import ring
from digrad.torch import Replicas
from digrad.torch.engines.memory_reuse import SMALLEST, Buffers

WIDTH = SMALLEST // 4


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    x, memory = torch.arange(float(WIDTH)), Buffers()
    with memory:
        held = (x + 1)[10:20]  # a view keeps all of it
        places = set()
        for k in range(5):
            result = 2 * (x - k) / 4
            places.add(result.data_ptr())
            del result
    assert torch.equal(held, x[10:20] + 1)
    assert len(places) <= 2
    assert len(memory._kept) <= 4


def test_results_are_those_of_torch() -> None:
    x, y = torch.randn(2, 1, WIDTH, generator=torch.Generator().manual_seed(0))
    column, flags = torch.full((1, 1), 0.3), x > 0

    def results() -> list[torch.Tensor]:
        return [
            x + y, 1 + x, x - y, 1 - x, x * column, column * x, x / y, 1 / x, x**2, x.abs(), abs(x), -x, torch.sign(x),
            torch.maximum(x, y), x.clone(), torch.zeros_like(x), torch.where(flags, x, 0.0), x * flags, x + y.double(),
            x.add(y, alpha=2), x.expand(3, -1) * y, x.t() * column, x.view(2, -1) + y.view(2, -1), x[0] * 2,
        ]  # fmt: skip

    expected = results()
    with Buffers():
        found = results()
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)


def test_step_of_a_large_model_takes_no_new_pages() -> None:
    """Arrays of more than 32 MB go back to the system as soon as they are freed, whatever their history."""
    ends, faults = [], []
    for reuse in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(17 * WIDTH // 1000, 1000, bias=False)
        replicas = Replicas(model, CGT(0.1, 1.0), Network(ring(2)))
        replicas._memory = replicas._memory if reuse else contextlib.nullcontext()
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            replicas.step()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        ends.append(replicas.estimate().clone())
    assert torch.equal(*ends)
    assert faults[0] < faults[1] / 4, faults
