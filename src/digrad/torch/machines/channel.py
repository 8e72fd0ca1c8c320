"""Short messages between the launches of a run: JSON over a sealed connection. Nothing is unpickled."""

import contextlib
import errno
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from digrad.torch.machines.sealed import StrangerError, Wire, meet

CONTEXT = b"digrad launch 1"
BEAT = 1.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without a sign of life after which a machine counts as lost
GREETING = 5.0  # seconds that the other end of a new connection gets
STRANGERS = 32  # connections that may be greeted at a time
_NAMED = 100  # addresses of strangers that are shown: whoever has many cannot fill the log
_PAUSE = 0.1  # seconds after which to accept again, where descriptors or memory were short
_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 24  # bytes of a message

Message = dict[str, Any]


def connections(listener: socket.socket) -> Iterator[tuple[socket.socket, Any]]:
    """Yield new connections with their addresses until the listener is closed, also after descriptors were short."""
    while True:
        try:
            yield listener.accept()
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EINVAL):
                return  # closed
            time.sleep(_PAUSE)


class Listener:
    """A listening socket at which some connections are greeted at a time, each in a thread of its own.

    Who comes when all places are taken gets that of whoever has been greeted for longest: who knows the secret proves
    it within moments, so that strangers who say nothing, or little at a time, cannot keep the others out.

    Args:
        listener: The socket, which belongs to this object from now on.
        welcome: Greets and serves one connection, given with its address; calls :meth:`let_in` or :meth:`refuse`.
    """

    def __init__(self, listener: socket.socket, welcome: Callable[[socket.socket, str], None]) -> None:
        self._listener, self._welcome = listener, welcome
        self._lock = threading.Lock()
        self._greeted: list[socket.socket] = []  # the oldest first
        self._named: set[str] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, name="digrad-listener", daemon=True).start()

    def let_in(self, connection: socket.socket) -> None:
        """Say that a connection is greeted no more: its place is free."""
        with self._lock:
            if connection in self._greeted:
                self._greeted.remove(connection)

    def refuse(self, connection: socket.socket, address: str, error: Exception) -> None:
        """Close a connection, and show one line for each address."""
        self.let_in(connection)
        connection.close()
        with self._lock:
            is_named = self._is_closed or address in self._named or len(self._named) == _NAMED
            if not is_named:
                self._named.add(address)
        if not is_named:
            reason = error if isinstance(error, StrangerError) else "it does not speak as digrad does"
            sys.stderr.write(f"digrad: refused a connection from {address}: {reason}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        for connection, (address, *_) in connections(self._listener):
            with self._lock:
                self._greeted.append(connection)
                oldest = self._greeted.pop(0) if len(self._greeted) > STRANGERS else None
            if oldest is not None:
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            threading.Thread(target=self._welcome, args=(connection, address), daemon=True).start()


class Channel:
    """Messages both ways; any thread may send, one receives.

    Args:
        wire: After the greeting.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire, self._lock = wire, threading.Lock()
        wire.connection.settimeout(SILENCE)

    @classmethod
    def over(cls, connection: socket.socket, secret: bytes | None, *, is_first: bool) -> "Channel":
        """Greet the other end; see :func:`digrad.torch.machines.sealed.meet`."""
        return cls(meet(connection, secret, CONTEXT, is_first=is_first, timeout=GREETING))

    @property
    def here(self) -> str:
        """The address of this end."""
        return self._wire.connection.getsockname()[0]

    @property
    def there(self) -> str:
        """The address of the other end."""
        return self._wire.connection.getpeername()[0]

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            OSError: The connection is lost, or the other end takes nothing for too long.
        """
        data = json.dumps(message).encode()
        with self._lock:
            self._wire.send(_LENGTH.pack(len(data)))
            self._wire.send(data)

    def receive(self) -> Message:
        """Return the next message; every end sends one each second.

        Raises:
            OSError: The connection is lost, or was silent for too long.
            StrangerError: What came was not sent by the other end.
        """
        (length,) = _LENGTH.unpack(self._wire.receive(_LENGTH.size))
        if length > _LONGEST:
            raise StrangerError(f"a message of {length} bytes was announced")
        try:
            message = json.loads(self._wire.receive(length))
        except (ValueError, RecursionError) as error:
            raise StrangerError("a message was no JSON") from error
        if not isinstance(message, dict):
            raise StrangerError("a message was no JSON object")
        return message

    def close(self) -> None:
        """End the connection."""
        self._wire.close()
