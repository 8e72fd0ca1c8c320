"""Short messages between the launches of a run: JSON over a sealed connection. Nothing is unpickled."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from digrad.torch.machines.sealed import StrangerError, Wire, meet

CONTEXT = b"digrad launch 1"
BEAT = 1.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without a sign of life after which a machine counts as lost
GREETING = 5.0  # seconds that the other end of a new connection gets
STRANGERS = 32  # connections that may be greeted at a time
_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 24  # bytes of a message

Message = dict[str, Any]


def accept_all(
    listener: socket.socket, greeting: threading.Semaphore, welcome: Callable[[socket.socket, str], None]
) -> None:
    """Hand every new connection, with its address, to a thread of its own, until ``listener`` is closed.

    Args:
        listener: The socket.
        greeting: Who is not greeted at once is sent away; ``welcome`` releases it after the greeting.
        welcome: Greets and serves one connection.
    """
    while True:
        try:
            connection, (address, *_) = listener.accept()
        except OSError:
            return  # closed
        if greeting.acquire(blocking=False):
            threading.Thread(target=welcome, args=(connection, address), daemon=True).start()
        else:
            connection.close()


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
        except ValueError as error:
            raise StrangerError("a message was no JSON") from error
        if not isinstance(message, dict):
            raise StrangerError("a message was no JSON object")
        return message

    def close(self) -> None:
        """End the connection."""
        self._wire.close()
