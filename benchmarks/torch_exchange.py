"""Cost of communication between real processes on loopback, against raw TCP, all_reduce and plain SGD.

``run_torch_bench`` starts five processes of this module and compares their slowest times.
"""

import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.processes import SECONDS, run_processes
from benchmarks.report import BenchRow
from digrad import CGT, checks
from digrad.graphs import Digraph, from_edges
from digrad.torch.launch import require_torch

RESNET18 = 11_173_962  # parameters of ResNet-18 for ten classes
GRAPH: Digraph = from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (1, 3), (2, 4)])  # 8 edges
COMPUTE = 0.5  # seconds that a forward and backward pass on another device would take
BUCKET = 25 << 20  # bytes that DDP reduces at a time


def run_torch_bench(*, repeats: int = 7, dimension: int = RESNET18) -> list[BenchRow]:
    """Measure the exchange of one model-sized buffer over eight edges between five processes, and a step of CGT.

    The candidates take turns in one run; the time of a round is that of its slowest process.

    Args:
        repeats: Turns per comparison.
        dimension: Numbers per buffer (float32).

    Raises:
        DigradError: A process failed; the message ends with its last line.
    """
    require_torch("the torch benchmark")
    repeats = checks.count(repeats, "repeats", "run_torch_bench")
    command = [sys.executable, "-m", "benchmarks.torch_exchange", str(repeats), str(dimension)]
    found = run_processes(command, GRAPH.n)
    times = {
        name: statistics.median(map(max, zip(*(one["times"][name] for one in found), strict=True)))
        for name in found[0]["times"]
    }
    local = {name: statistics.median(values) for name, values in found[0]["local"].items()}
    hidden = 100 * (1 - times["visible"] / times["serial"])
    megabytes = (
        f"{4e-6 * dimension:.1f} MB per edge, 8 edges, 5 processes, slowest process, median of {repeats}"
    )
    exchange, tcp = 1e3 * times["exchange"], 1e3 * times["tcp"]
    way = "through shared memory" if found[0]["direct"] else "over ZeroMQ: memory cannot be shared here"
    return [
        BenchRow("exchange of one buffer", exchange, "ms", 1.5, tcp, note=f"{way}; against raw TCP; {megabytes}"),
        BenchRow("the same over gloo", 1e3 * times["gloo"], "ms", 1.5, tcp, note="raw TCP, on loopback"),
        BenchRow("the same over ZeroMQ, as between machines", 1e3 * times["plain"], "ms", 1.5, tcp, note="raw TCP"),
        BenchRow(
            "the same encrypted and authenticated", 1e3 * times["encrypted"], "ms", 4.5, tcp,
            note="CURVE at both ends of eight edges on the cores of this machine; against raw TCP; "
            f"{times['encrypted'] / times['plain']:.2f} times as long as without a key",
        ),
        BenchRow(
            "exchange instead of the all_reduce of DDP", exchange, "ms", 1.5, 1e3 * times["all_reduce"], at_least=True,
            note=megabytes,
        ),
        BenchRow(
            "CGT step without mixing", 1e3 * local["cgt"], "ms", 10.0, 1e3 * local["sgd"],
            note="torch.optim.SGD with momentum on the same parameters, one process",
        ),
        BenchRow(
            "communication hidden behind 0.5 s of compute", hidden, "%", 90.0, at_least=True,
            note=f"serial {1e3 * times['serial']:.0f} ms, visible {1e3 * times['visible']:.0f} ms",
        ),
        BenchRow(
            "peak memory of an agent", max(one["buffers"] for one in found), "buffers", 14.0,
            note="flat buffers over three steps of CGT, receive buffers included, largest of five processes",
        ),
    ]  # fmt: skip


def _work(repeats: int, dimension: int) -> dict[str, Any]:
    """Return what one process measures."""
    import torch
    import torch.distributed as dist

    from digrad.torch import ProcessNetwork

    network = ProcessNetwork(GRAPH, timeout=SECONDS)
    dist.all_reduce(torch.zeros(1))  # connects everybody
    buffers, times = _memory_and_overlap(network, dimension, repeats)
    own = torch.rand(1, dimension)
    with ExitStack() as stack:
        candidates: dict[str, Callable[[], Any]] = {
            "exchange": _exchange(network, own, network.transports),
            "gloo": _gloo_exchange(network, own),
            "plain": _exchange(network, own, _over_zeromq(network, stack, has_key=False)),
            "encrypted": _exchange(network, own, _over_zeromq(network, stack, has_key=True)),
            "tcp": _raw_tcp(network, own, stack),
            "all_reduce": _all_reduce(own),
        }
        times |= {name: [] for name in candidates}
        for turn in range(repeats + 1):
            for name, run in candidates.items():
                dist.barrier()
                seconds = _seconds(run)
                times[name] += [seconds] if turn else []  # the first turn warms up
    local = _local_steps(dimension, repeats) if network.agent == 0 else {}
    network.close()
    direct = len(network.shares_memory_with) == network.n
    return {"times": times, "buffers": buffers, "local": local, "direct": direct}


def _all_reduce(own: Any) -> Callable[[], None]:
    """Return what DDP does with a gradient of this size: buckets, divided and reduced one behind the other."""
    import torch.distributed as dist

    gradient = own.clone()
    buckets = gradient[0].split(BUCKET // gradient.element_size())

    def run() -> None:
        works = [dist.all_reduce(bucket.div_(GRAPH.n), async_op=True) for bucket in buckets]
        for work in works:
            if work is not None:
                work.wait()

    return run


def _over_zeromq(network: Any, stack: ExitStack, *, has_key: bool) -> Any:
    """Return the transport that agents of different machines would use."""
    import zmq

    from digrad.torch.transport.curve_keys import KeyPair
    from digrad.torch.transport.transports import Transports
    from digrad.torch.transport.zeromq import ZeroMQ

    pair = {name: key.decode() for name, key in zip(("public", "secret"), zmq.curve_keypair(), strict=True)}
    drawn = network.exchange(pair, "bench")[0]
    keys = KeyPair(drawn["public"].encode(), drawn["secret"].encode()) if has_key else None
    transports = Transports(
        [ZeroMQ(network.agent, "127.0.0.1", keys, lambda facts: network.exchange(facts, "bench"))]
    )
    stack.callback(transports.close)
    return transports


def _exchange(network: Any, own: Any, transports: Any) -> Callable[[], None]:
    from digrad.torch.engines.mixing import shares
    from digrad.torch.engines.synchronous import PacketRound, Part

    share, count = shares(network.network.R, conserves=False)[network.agent], [0]
    channel = transports.channel().open()

    def run() -> None:
        count[0] += 1
        current = PacketRound([Part(share, own)], channel, network, count[0], 0)
        current.finish()
        current.release()

    return run


def _gloo_exchange(network: Any, own: Any) -> Callable[[], None]:
    from digrad.torch.engines.mixing import shares
    from digrad.torch.engines.synchronous import Part
    from digrad.torch.transport.torch_distributed import DeviceRound

    share, count = shares(network.network.R, conserves=False)[network.agent], [0]
    channel = network.transports.channel()  # which counts

    def run() -> None:
        count[0] += 1
        DeviceRound([Part(share, own)], channel, network, count[0], 0).finish()

    return run


def _raw_tcp(network: Any, own: Any, stack: ExitStack) -> Callable[[], None]:
    """Return the same transfer over plain sockets, one thread per edge and side."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    ports = [one["port"] for one in network.exchange({"port": server.getsockname()[1]}, "bench")]
    agent = network.agent
    outgoing = [
        stack.enter_context(socket.create_connection(("127.0.0.1", ports[other])))
        for other in GRAPH.out_neighbors(agent)
    ]
    incoming = [stack.enter_context(server.accept()[0]) for _ in GRAPH.in_neighbors(agent)]
    message = memoryview(own.numpy().reshape(-1).view("uint8"))
    inboxes = [bytearray(len(message)) for _ in incoming]

    def receive(connection: socket.socket, inbox: bytearray) -> None:
        view, done = memoryview(inbox), 0
        while done < len(view):
            done += connection.recv_into(view[done:])

    def run() -> None:
        threads = [
            threading.Thread(target=receive, args=pair) for pair in zip(incoming, inboxes, strict=True)
        ]
        threads += [threading.Thread(target=connection.sendall, args=(message,)) for connection in outgoing]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def _memory_and_overlap(network: Any, dimension: int, repeats: int) -> tuple[float, dict[str, list[float]]]:
    """Return the peak of flat buffers in three steps, and how long messages are waited for in two orders."""
    import torch.distributed as dist

    from digrad.torch import DecentralizedOptimizer

    _train(DecentralizedOptimizer, network, 100)  # loads the code of a step
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    optimizer = _train(DecentralizedOptimizer, network, dimension)
    inboxes = 2 * len(GRAPH.in_neighbors(network.agent)) * 4 * dimension  # of x and y
    elsewhere = max(_status("RssShmem") - inboxes, 0)  # memory of neighbours, into which this agent writes
    buffers = (_status("VmHWM") - before - elsewhere) / (4 * dimension)
    times: dict[str, list[float]] = {"serial": [], "visible": []}
    for turn in range(2 * repeats):
        name = ("serial", "visible")[turn % 2]
        dist.barrier()
        optimizer.step()
        time.sleep(COMPUTE if name == "visible" else 0)
        times[name].append(_seconds(optimizer.close))
    optimizer.close()
    return buffers, times


def _train(optimizer_type: Any, network: Any, dimension: int) -> Any:
    model = _parameters(dimension)
    optimizer = optimizer_type(model, CGT(step_size=1e-3, threshold=1.0), network)
    for _ in range(3):
        optimizer.zero_grad()
        for parameter in model:
            parameter.sum().backward()  # without activations: the memory of the optimizer is measured
        optimizer.step()
    optimizer.close()
    return optimizer


def _local_steps(dimension: int, repeats: int) -> dict[str, list[float]]:
    """Return the times of a CGT step of a lone agent and of SGD with momentum, taking turns."""
    import torch

    from digrad.methods.cgt import CGTState
    from digrad.torch.engines.engine import overwrite
    from digrad.torch.engines.memory_reuse import reused_memory
    from digrad.torch.engines.mixing import Share, combine

    method, alone = CGT(step_size=1e-3, threshold=1.0), Share(0, ((0, 1.0),), (), True)
    net: Any = SimpleNamespace(
        push=lambda y: combine(alone, y, y, {}), pull=lambda x: combine(alone, x, x, {})
    )
    x, y, g, grad = (torch.rand(1, dimension) for _ in range(4))
    state = CGTState(x=x, y=y, g=g)
    parameters = _parameters(dimension)
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    sgd = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    memory = reused_memory(x)  # as the optimizer has it

    def step() -> None:
        with memory:
            overwrite(state, method.step(state, grad, net))

    times: dict[str, list[float]] = {"cgt": [], "sgd": []}
    for _ in range(repeats + 1):
        times["cgt"].append(_seconds(step))
        times["sgd"].append(_seconds(sgd.step))
    return {name: values[1:] for name, values in times.items()}


def _parameters(dimension: int) -> list[Any]:
    """Return parameters of the sizes of ResNet-18, the last one filled up or cut to ``dimension`` in all."""
    import torch

    sizes, planes = [1728, 64, 64], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for inputs in (planes, width):
            sizes += [9 * inputs * width, width, width, 9 * width * width, width, width]
        sizes += [planes * width, width, width] if stride > 1 else []
        planes = width
    sizes += [5120, 10]
    kept = [size for i, size in enumerate(sizes) if sum(sizes[: i + 1]) <= dimension]
    rest = dimension - sum(kept)
    return [torch.nn.Parameter(torch.full((size,), 1e-2)) for size in (*kept, *([rest] if rest else []))]


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) << 10


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(_work(int(sys.argv[1]), int(sys.argv[2]))))
