"""Agents that talk over transports, in processes of their own, without optimizers."""

import json
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from digrad.torch.transport.curve_keys import KeyPair
from digrad.torch.transport.transports import Transports, open_transports
from digrad.torch.transport.zeromq import ZeroMQ


def exchange_through(store: Any, agent: int, n: int) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """Return what gathers facts of all agents through a store."""
    count = [0]

    def exchange(facts: dict[str, Any]) -> list[dict[str, Any]]:
        count[0] += 1
        store.set(f"{count[0]}/{agent}", json.dumps(facts))
        return [json.loads(store.get(f"{count[0]}/{peer}")) for peer in range(n)]

    return exchange


def open_kind(kind: str, agent: int, n: int, exchange: Any, keys: KeyPair | None = None) -> Transports:
    """Return transports of one kind: ``memory``, ``zeromq``, ``curve``, or ``ipv6`` for ZeroMQ there."""
    if kind == "memory":
        return open_transports(agent, "127.0.0.1", None, exchange)
    return Transports([ZeroMQ(agent, "::1" if kind == "ipv6" else "127.0.0.1", keys, exchange)])


def run_agents(
    n: int,
    folder: Path,
    work: Callable[..., Any],
    *args: Any,
    seconds: float = 120.0,
    codes: list[int] | None = None,
    as_nobody: bool = False,
) -> list[Any]:
    """Run ``work(agent, exchange, *args)`` in n forked processes; return what each returns."""
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe() for _ in range(n)]

    def main(agent: int) -> None:
        torch.set_num_threads(1)
        try:
            if as_nobody and os.getuid() == 0:
                os.setresuid(65534, 65534, 65534)
            store = torch.distributed.FileStore(str(folder / "store"), n)  # pyright: ignore[reportPrivateImportUsage]
            ends[agent][1].send((True, work(agent, exchange_through(store, agent, n), *args)))
        except BaseException:
            ends[agent][1].send((False, traceback.format_exc()))

    processes = [context.Process(target=main, args=(agent,)) for agent in range(n)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX warns of forks; these processes do not use it
        for process in processes:
            process.start()
    found = []
    try:
        for agent, (here, _) in enumerate(ends):
            if codes is not None and codes[agent]:
                processes[agent].join(seconds)
                assert processes[agent].exitcode == codes[agent]
                found.append(None)
                continue
            assert here.poll(seconds), f"agent {agent} has not ended"
            is_good, value = here.recv()
            assert is_good, f"agent {agent}:\n{value}"
            found.append(value)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return found
