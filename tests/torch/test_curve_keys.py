"""The keys of a run, and listening sockets that let in nobody without them."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

from digrad.errors import StorageError
from digrad.torch.launch.rendezvous_endpoint import Server
from digrad.torch.launch.rendezvous_rounds import Rounds
from digrad.torch.transport.addresses import listening_socket
from digrad.torch.transport.curve_keys import KeyPair, make_key, read_key, secure


def test_full_disk_leaves_no_half_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, mode: str) -> Any:
        os.close(descriptor)
        return open("/dev/full", mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", full)
        with pytest.raises(StorageError, match="No space left on device"):
            make_key(tmp_path / "run.key")
    assert len(read_key(make_key(tmp_path / "run.key")).secret) == 40


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, others = (read_key(make_key(tmp_path / name)) for name in ("run.key", "other.key"))
    listener = listening_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with contextlib.closing(Server(listener, keys, Rounds(1))):
        assert connected(keys, port)
        assert not connected(others, port)
        assert not connected(others, port, server=keys.public)  # knows the public half only
        assert not connected(None, port)
        for garbage in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), b"\xff" * 64):
            with socket.create_connection(("127.0.0.1", port)) as intruder:
                intruder.sendall(garbage)
        assert connected(keys, port)
    lines = set(capsys.readouterr().err.splitlines())
    assert "digrad: refused a connection from 127.0.0.1: it has not proved that it knows the key" in lines
    assert len(lines) <= 2
