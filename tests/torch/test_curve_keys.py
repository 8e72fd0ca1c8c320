"""The keys of a run, and listening sockets that let in nobody without them."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from digrad.errors import StorageError
from digrad.torch.transport.curve_keys import KeyPair, authenticate, log_refused, make_key, read_key, secure


def test_full_disk_leaves_no_half_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, mode: str) -> Any:
        os.close(descriptor)
        return open("/dev/full", mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", full)
        with pytest.raises(StorageError, match="No space left on device"):
            make_key(tmp_path / "run.key")
    assert len(read_key(make_key(tmp_path / "run.key")).secret) == 40


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made = zmq.Context()
    yield made
    made.term()  # waits for the thread that logs, whose socket nobody else may close


def connected(keys: KeyPair | None, port: int, server: bytes | None = None) -> bool:
    """Return whether a client gets in within a second."""
    with zmq.Context() as own, own.socket(zmq.DEALER) as client:
        client.immediate, client.linger = True, 0
        secure(client, keys, server=False)
        if server is not None:
            client.curve_serverkey = server
        client.connect(f"tcp://127.0.0.1:{port}")
        return bool(client.poll(1000, zmq.POLLOUT))


def test_nobody_without_the_secret_gets_in_and_one_line_says_so(
    context: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, others = (read_key(make_key(tmp_path / name)) for name in ("run.key", "other.key"))
    authenticator = authenticate(context, keys)
    with context.socket(zmq.ROUTER) as server:
        secure(server, keys, server=True)
        log_refused(server)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        assert connected(keys, port)
        assert not connected(others, port)
        assert not connected(others, port, server=keys.public)  # knows the public half only
        assert not connected(None, port)
        for garbage in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), b"\xff" * 64):
            with socket.create_connection(("127.0.0.1", port)) as intruder:
                intruder.sendall(garbage)
        assert connected(keys, port)
        time.sleep(0.2)
        server.disable_monitor()
    authenticator.stop()
    lines = set(capsys.readouterr().err.splitlines())
    assert "digrad: refused a connection from 127.0.0.1: it has not proved that it knows the key" in lines
    assert len(lines) <= 2
