"""Protocols between hosts: `python -m benchmarks.transports` compares four on loopback.

Plain TCP, ZeroMQ, ZeroMQ with CURVE and TLS 1.3 of the standard library (with a self-signed certificate that
``openssl`` makes), each between two processes: a ResNet-18 buffer in pieces of 1 MiB, and 4 kB there and back. CPU is
that of both ends. A receiver is then stopped for a second in the middle of a transfer, and killed.
"""

import multiprocessing
import os
import resource
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zmq

LARGE, SMALL, PIECE = 44_695_848, 4096, 1 << 20  # bytes
ROUNDS, PINGS = 10, 200


class Sockets:
    """Plain TCP, or TLS 1.3 over it."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def listen(self) -> tuple[Any, int]:
        """Return what :meth:`accept` takes, and the port."""
        server = socket.create_server(("127.0.0.1", 0))
        return server, server.getsockname()[1]

    def accept(self, server: Any) -> Any:
        """Return the connection of the other end."""
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._folder is None:
            return connection
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._folder / "cert.pem", self._folder / "key.pem")
        context.load_verify_locations(self._folder / "cert.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        return context.wrap_socket(connection, server_side=True)

    def connect(self, port: int) -> Any:
        """Return a connection."""
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._folder is None:
            return connection
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_cert_chain(self._folder / "cert.pem", self._folder / "key.pem")
        context.load_verify_locations(self._folder / "cert.pem")
        return context.wrap_socket(connection)

    def send(self, connection: Any, message: memoryview) -> None:
        """Send a message in pieces."""
        for start in range(0, len(message), PIECE):
            connection.sendall(message[start : start + PIECE])

    def receive(self, connection: Any, inbox: memoryview) -> None:
        """Fill the inbox."""
        while inbox:
            count = connection.recv_into(inbox)
            if not count:
                raise ConnectionResetError
            inbox = inbox[count:]


class ZeroMQ:
    """A PAIR socket at either end, encrypted if there are keys."""

    def __init__(self, keys: tuple[bytes, bytes] | None = None) -> None:
        self._keys = keys

    def listen(self) -> tuple[Any, int]:
        """Return what :meth:`accept` takes, and the port."""
        listener = self._socket(server=True)
        return listener, listener.bind_to_random_port("tcp://127.0.0.1")

    def accept(self, server: Any) -> Any:
        """Return the socket itself."""
        return server

    def connect(self, port: int) -> Any:
        """Return a connected socket."""
        connection = self._socket(server=False)
        connection.connect(f"tcp://127.0.0.1:{port}")
        return connection

    def send(self, connection: Any, message: memoryview) -> None:
        """Send a message in frames."""
        for start in range(0, len(message), PIECE):
            connection.send(message[start : start + PIECE], copy=len(message) <= PIECE)

    def receive(self, connection: Any, inbox: memoryview) -> None:
        """Fill the inbox."""
        while inbox:
            frame = connection.recv(copy=False).buffer
            inbox[: len(frame)] = frame
            inbox = inbox[len(frame) :]

    def _socket(self, *, server: bool) -> Any:
        made = zmq.Context.instance().socket(zmq.PAIR)
        made.sndhwm = made.rcvhwm = 16
        if self._keys is not None:
            made.curve_publickey, made.curve_secretkey = self._keys
            if server:
                made.curve_server = True
            else:
                made.curve_serverkey = self._keys[0]
        return made


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _serve(protocol: Any, control: Connection) -> None:
    """Receive what :func:`_measure` sends, and send it back where it is small."""
    server, port = protocol.listen()
    control.send(port)
    connection, large, small = (
        protocol.accept(server),
        memoryview(bytearray(LARGE)),
        memoryview(bytearray(SMALL)),
    )
    while (task := control.recv()) is not None:
        before = _cpu()
        for _ in range(PINGS if task == "small" else ROUNDS if task == "large" else 1):
            protocol.receive(connection, small if task == "small" else large)
            protocol.send(connection, small)
        control.send(_cpu() - before)


def _measure(protocol: Any) -> dict[str, str]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(protocol, there))
    process.start()
    connection = protocol.connect(here.recv())
    large, small = memoryview(bytearray(os.urandom(LARGE))), memoryview(bytearray(SMALL))
    found = {}

    def run(task: str, message: memoryview, rounds: int, on_sent: Callable[[], None] = lambda: None) -> float:
        here.send(task)
        times, before = [], _cpu()
        for _ in range(rounds):
            began = time.perf_counter()
            protocol.send(connection, message)
            on_sent()
            protocol.receive(connection, small)
            times.append(time.perf_counter() - began)
        cpu = (_cpu() - before + here.recv()) / rounds
        found[f"{task} CPU"] = f"{1e3 * cpu:.3g} ms"
        return statistics.median(times)

    seconds = run("large", large, ROUNDS)
    found["44.7 MB"] = f"{1e3 * seconds:.0f} ms, {LARGE / seconds / 1e9:.2f} GB/s"
    found["4 kB there and back"] = f"{1e6 * run('small', small, PINGS):.0f} us"
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(1); os.kill({process.pid}, 18)"])
    found["stopped for 1 s"] = f"ends after {run('stopped', large, 1):.2f} s"
    is_zeromq = isinstance(protocol, ZeroMQ)
    monitor = connection.get_monitor_socket(zmq.EVENT_DISCONNECTED) if is_zeromq else None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    found["killed"] = _after_death(protocol, connection, monitor, small)
    return found


def _after_death(protocol: Any, connection: Any, monitor: Any, small: memoryview) -> str:
    began = time.perf_counter()
    if monitor is not None:
        is_known = monitor.poll(1000)
        return f"an event after {1e3 * (time.perf_counter() - began):.1f} ms" if is_known else "nothing"
    try:
        connection.settimeout(1.0)
        protocol.receive(connection, small)
    except (OSError, ssl.SSLError) as error:
        return f"{type(error).__name__} after {1e3 * (time.perf_counter() - began):.1f} ms"
    return "nothing"


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
             "1", "-subj", "/CN=bench", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
        protocols = {
            "TCP": Sockets(),
            "ZeroMQ": ZeroMQ(),
            "TLS 1.3": Sockets(Path(folder)),
            "CURVE": ZeroMQ(zmq.curve_keypair()),
        }
        rows = {name: _measure(protocol) for name, protocol in protocols.items()}
    names = list(rows["TCP"])
    print("| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|", sep="\n")
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(row[key] for key in names) + " |")


if __name__ == "__main__":
    main()
