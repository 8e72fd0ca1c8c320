"""Memory that agents of one host share: who may, and what happens when it cannot."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from digrad.torch.transport import shared_memory
from digrad.torch.transport.packets import MessageLostError
from transport_processes import open_kind, run_agents

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory files are a facility of Linux")

LARGE = torch.ones(1 << 16)


def pass_to_and_fro(agent: int, exchange: Any) -> dict[str, int]:
    """Exchange large packets; return how many descriptors there are after the first and the last."""
    transports = open_kind("memory", agent, 2, exchange)
    channel, found = transports.channel().open(), {}
    for turn in range(5):
        sending = channel.send(1 - agent, b"", [LARGE * agent])
        packet = channel.wait(1 - agent, 60.0)
        assert packet is not None
        assert torch.equal(packet.payload.view(torch.float32), LARGE * (1 - agent))
        assert sending.wait(60.0) is sending
        channel.release(1 - agent)
        exchange({})
        if turn in (0, 4):
            found[str(turn)] = len(os.listdir("/proc/self/fd"))
    exchange({})
    transports.close()
    return found


def test_memory_is_handed_over_once(tmp_path: Path) -> None:
    for found in run_agents(2, tmp_path, pass_to_and_fro):
        assert found["0"] == found["4"]


def test_ordinary_users_share_memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        run_agents(2, Path(folder), pass_to_and_fro, as_nobody=True)


def offer_unsealed(agent: int, exchange: Any) -> None:
    def unsealed(size: int) -> int:
        file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        return file

    transports = open_kind("memory", agent, 2, exchange)
    channel = transports.channel().open()
    if agent == 0:
        shared_memory.memory_file = unsealed
        channel.send(1, b"", [LARGE])
    else:
        with pytest.raises(MessageLostError, match="is not sealed"):
            channel.wait(0, 60.0)
    exchange({})
    transports.close()


def test_memory_that_could_shrink_is_not_read(tmp_path: Path) -> None:
    run_agents(2, tmp_path, offer_unsealed)


INTRUDER = """
import socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(chr(0) + sys.argv[1])
sys.exit(0 if link.recv(8) == b'' else 1)
"""


def refuse_an_intruder(agent: int, exchange: Any) -> None:
    names: list[str] = []
    describe = shared_memory._describe_self

    def noted(listener: socket.socket) -> dict[str, Any]:
        facts = describe(listener)
        names.append(facts["socket"])
        return facts

    shared_memory._describe_self = noted
    transports = open_kind("memory", agent, 2, exchange)
    channel = transports.channel().open()
    intruder = subprocess.run([sys.executable, "-c", INTRUDER, *names], timeout=60, check=False)
    assert intruder.returncode == 0  # turned away
    channel.send(1 - agent, b"hello", [LARGE])
    packet = channel.wait(1 - agent, 60.0)
    assert packet is not None
    assert packet.header == b"hello"
    exchange({})
    transports.close()


def test_process_that_is_no_agent_is_turned_away(tmp_path: Path) -> None:
    run_agents(2, tmp_path, refuse_an_intruder)


def lie(agent: int, exchange: Any) -> None:
    describe = shared_memory._describe_self
    if agent == 1:
        shared_memory._describe_self = lambda listener: {**describe(listener), "pid": os.getppid()}
    transports = open_kind("memory", agent, 2, exchange)
    channel = transports.channel().open()
    if agent == 0:
        with pytest.raises(MessageLostError, match="another process listens there"):
            channel.send(1, b"", [torch.ones(3)]).wait(60.0)
    exchange({})
    time.sleep(0.1)
    transports.close()


def test_agent_that_is_not_the_process_it_says_gets_nothing(tmp_path: Path) -> None:
    run_agents(2, tmp_path, lie)
