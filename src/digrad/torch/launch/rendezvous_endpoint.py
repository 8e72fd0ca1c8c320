"""Requests to the endpoint of a run and answers: JSON over ZeroMQ, encrypted and authenticated by the key, if any."""

import contextlib
import errno
import itertools
import json
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from digrad.torch.transport.curve_keys import KeyPair, Refusals, authenticate, require_zmq, secure

if TYPE_CHECKING:
    from digrad.torch.launch.rendezvous_rounds import Rounds

DISCONNECTED = 5.0  # seconds without a connection after which the endpoint counts as lost
ANSWER_TIMEOUT = (
    60.0  # seconds without an answer over a connection that stands, as of a machine that was stopped
)
_REFUSALS = 2  # failed handshakes after which whoever listens there counts as somebody else
_RESEND = 5.0  # seconds after which a request is repeated
_DRAIN = 5.0  # seconds that the machine with the endpoint stays for the others
_LARGEST = 1 << 24  # bytes of a request

Message = dict[str, Any]


class EndpointLostError(ConnectionError):
    """The machine with the endpoint cannot be reached, or does not answer."""


class EndpointRefusedError(EndpointLostError):
    """Whoever listens at the endpoint has another key, or is another program."""


class Client:
    """Requests to the endpoint; several threads may ask at the same time, each over a connection of its own.

    Args:
        endpoint: ``host:port``.
        keys: Of the run; None trusts whoever is there.
        is_local: Whether a process of this machine listens there, which then has no excuse for its silence.
    """

    def __init__(self, endpoint: str, keys: KeyPair | None, *, is_local: bool = False) -> None:
        self._zmq = require_zmq("the rendezvous")
        self.endpoint, self._keys, self._is_local = endpoint, keys, is_local
        self._context = self._zmq.Context()
        self._idle: list[Any] = []  # sockets
        self._failed = 0  # handshakes, since the last one that has not
        self._open, self._is_closed, self._lock = 0, False, threading.Lock()
        self._name, self._numbers = uuid.uuid4().hex, itertools.count()

    def ask(self, patience: float = ANSWER_TIMEOUT, **request: Any) -> Message:
        """Return the answer to a request; it is repeated until there is one.

        Raises:
            EndpointLostError: There was no connection for 5 seconds, or no answer for ``patience`` seconds.
        """
        number = f"{self._name} {next(self._numbers)}"
        data = json.dumps({**request, "id": number}).encode()
        try:
            socket = self._idle.pop()
        except IndexError:
            socket = self._connect()
        try:
            return self._answer(socket, data, number, patience)
        finally:
            self._idle.append(socket)
            if self._is_closed:
                self._end_idle()

    def close(self) -> None:
        """End all connections; one over which a thread asks ends there, because a socket belongs to one thread."""
        self._is_closed = True
        self._end_idle()

    def _end_idle(self) -> None:
        with self._lock:
            while self._idle:
                socket = self._idle.pop()
                monitor = socket.get_monitor_socket()
                socket.disable_monitor()
                monitor.close()
                socket.close()
                self._open -= 1
            if self._open == 0:
                self._context.term()

    def _answer(self, socket: Any, data: bytes, number: str, patience: float) -> Message:
        began = time.monotonic()
        connected = sent = None  # when that was last the case
        while True:
            now = time.monotonic()
            if socket.poll(0, self._zmq.POLLOUT):
                connected = now
                if sent is None or now - sent > _RESEND:
                    socket.send(data)
                    sent = now
            if now - (connected or began) > min(DISCONNECTED, patience):
                raise self._reason(socket)
            if now - began > patience:
                raise EndpointLostError(f"{self.endpoint} does not answer")
            if socket.poll(5 if sent is None else 100):
                answer = json.loads(socket.recv())
                if answer.get("id") == number:  # not of a request that was given up, or repeated
                    return answer

    def _reason(self, socket: Any) -> EndpointLostError:
        """Return why there is no connection."""
        from zmq.utils.monitor import recv_monitor_message

        monitor = socket.get_monitor_socket()
        while monitor.poll(0):
            event = recv_monitor_message(monitor)
            if event["event"] == self._zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._failed = 0
            elif event["event"] != self._zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._failed = _REFUSALS  # certainly somebody else: ZeroMQ does not try again
            elif self._is_local or event["value"] != errno.EAGAIN:
                self._failed += 1
        if self._failed >= _REFUSALS:
            return EndpointRefusedError(f"{self.endpoint} refuses this machine")
        return EndpointLostError(f"there is no connection to {self.endpoint}")

    def _connect(self) -> Any:
        with self._lock:
            self._open += 1
        socket = self._context.socket(self._zmq.DEALER)
        secure(socket, self._keys, server=False)
        socket.immediate, socket.linger, socket.ipv6 = True, 0, True
        socket.heartbeat_ivl, socket.heartbeat_timeout = 10_000, int(1000 * ANSWER_TIMEOUT)
        events = self._zmq.EVENT_HANDSHAKE_SUCCEEDED | self._zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        events |= self._zmq.EVENT_HANDSHAKE_FAILED_AUTH | self._zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        socket.get_monitor_socket(events)
        socket.connect(f"tcp://{self.endpoint}")
        return socket


class Server:
    """Answers requests at the endpoint, in a thread.

    Args:
        listener: The listening socket, which belongs to this object from now on.
        keys: Of the run; None takes whoever comes.
        rounds: The state of the run.
    """

    def __init__(self, listener: socket.socket, keys: KeyPair | None, rounds: "Rounds") -> None:
        self._zmq, self._rounds = require_zmq("the rendezvous"), rounds
        self._context = self._zmq.Context()
        self._authenticator = authenticate(self._context, keys)
        self._socket = self._context.socket(self._zmq.ROUTER)
        secure(self._socket, keys, server=True)
        self._refusals = Refusals()
        self._monitor = self._socket.get_monitor_socket(self._refusals.events)
        host, port = listener.getsockname()[:2]
        self._socket.ipv6 = ":" in host
        self._socket.maxmsgsize, self._socket.linger = _LARGEST, 1000
        self._socket.use_fd = listener.detach()
        self._socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="digrad-rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer until no machine is left that might ask, or for 5 seconds, and stop listening."""
        deadline = time.monotonic() + _DRAIN
        while not self._rounds.is_empty and time.monotonic() < deadline:
            time.sleep(0.05)
        self._is_closing = True
        self._thread.join()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()

    def _serve(self) -> None:
        from zmq.utils.monitor import recv_monitor_message

        poller = self._zmq.Poller()
        poller.register(self._socket, self._zmq.POLLIN)
        poller.register(self._monitor, self._zmq.POLLIN)
        waiting: list[tuple[bytes, Message, float]] = []  # who waits for keys, for which, and until when
        while not self._is_closing:
            ready = dict(poller.poll(100))
            if self._monitor in ready:
                self._refusals.note(recv_monitor_message(self._monitor))
            if self._socket in ready:
                sender, data = self._socket.recv_multipart()[:2]
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError, AttributeError):
                    # It is answered below.
                    request = json.loads(data)
                    waiting.append((sender, request, time.monotonic() + request.get("seconds", 0.0)))
            waiting = [one for one in waiting if not self._answered(*one)]
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _answered(self, sender: bytes, request: Message, deadline: float) -> bool:
        """Answer a request, unless keys are missing that it waits for; nonsense of a member is left alone."""
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            answer = self._rounds.answer(request)
            if request["op"] == "wait" and answer.get("missing") and time.monotonic() < deadline:
                return False
            self._socket.send_multipart([sender, json.dumps({**answer, "id": request["id"]}).encode()])
        return True
