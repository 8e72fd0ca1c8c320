"""Bytes over a socket that nobody else can read, change, repeat or leave out, or as they are if there is no key.

Both directions have a key of their own, made for this connection only from the secret and from what both ends have
drawn for it. Every piece is sealed (AES-256-GCM) under a number that both ends count and nobody sends, so that a piece
which is changed, repeated, left out or cut short does not open.
"""

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import time
from typing import Any

from digrad.errors import CommunicationError

PIECE = 1 << 20  # bytes sealed at a time; longer ones leave the cache, which takes twice the time
TAG = 16  # bytes that a sealed piece is longer
_MAGIC = {True: b"digrad-sealed-1\n", False: b"digrad-plain--1\n"}
_DRAWN = 32  # bytes that each end contributes
_NONCE = struct.Struct("<xxxxQ")
_PLACE = struct.Struct("<Q")
CONFIRMATION = b"agreed"


class StrangerError(CommunicationError):
    """The other end does not know the secret, or what came from it was changed on the way."""


class Wire:
    """One end of a connection, after :func:`meet`.

    Args:
        connection: The socket, which belongs to it from now on.
        seal: Key of what is sent; None sends everything as it is.
        unseal: Key of what is received.
        context: What both ends know of the connection.
    """

    def __init__(
        self, connection: socket.socket, seal: bytes | None, unseal: bytes | None, context: bytes
    ) -> None:
        self.connection, self._context = connection, context
        self._seal, self._unseal = _cipher(seal), _cipher(unseal)
        self._sent = self._received = 0
        self._out, self._in = bytearray(), bytearray()  # sealed pieces
        self.last_progress = time.monotonic()  # when bytes moved

    def send(self, data: Any, about: bytes = b"") -> None:
        """Send bytes; ``about`` is authenticated with them and must be known at the other end.

        Raises:
            OSError: The connection is lost.
        """
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            if self._seal is not None:
                size = len(piece) + TAG
                place = self._context + about + _PLACE.pack(start)
                sealed = _room(self._out, size)
                self._seal.encrypt_into(_NONCE.pack(self._sent), piece, place, sealed)
                self._sent += 1
                piece = sealed
            while piece:
                count = self.connection.send(piece)
                piece = piece[count:]
                self.last_progress = time.monotonic()

    def receive_into(self, target: Any, about: bytes = b"") -> None:
        """Fill ``target`` with what the other end has sent.

        Raises:
            StrangerError: It was changed on the way, or is not of the other end.
            OSError: The connection is lost.
        """
        view = memoryview(target).cast("B")
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            if self._unseal is None:
                self._fill(piece)
                continue
            sealed = _room(self._in, len(piece) + TAG)
            self._fill(sealed)
            place = self._context + about + _PLACE.pack(start)
            try:
                self._unseal.decrypt_into(_NONCE.pack(self._received), sealed, place, piece)
            except _invalid_tag() as error:
                raise StrangerError(
                    "what arrived was changed on the way, repeated, or sealed with another key"
                ) from error
            self._received += 1

    def receive(self, size: int, about: bytes = b"") -> bytes:
        """Return the next bytes; see :meth:`receive_into`."""
        data = bytearray(size)
        self.receive_into(data, about)
        return bytes(data)

    def close(self) -> None:
        """Close the connection; the other end learns it at once, and so does a thread that waits here."""
        with contextlib.suppress(OSError):  # the other end was first
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self.connection.recv_into(view)
            if not count:
                raise ConnectionResetError("the other end has closed the connection")
            view = view[count:]
            self.last_progress = time.monotonic()


def meet(
    connection: socket.socket, secret: bytes | None, context: bytes, *, is_first: bool, timeout: float
) -> Wire:
    """Prove to the other end that this one knows the secret, and the other way round.

    Without a secret only the form is checked, and everything travels as it is.

    Args:
        connection: A connected TCP socket; it is closed if the other end is a stranger.
        secret: What both must know.
        context: What both must mean by this connection, such as the arc that it carries.
        is_first: Whether this end has made the connection.
        timeout: Seconds that the other end gets.

    Raises:
        StrangerError: The other end does not know the secret, means something else, or speaks another language.
        OSError: The connection is lost, or nothing came in time.
    """
    try:
        connection.settimeout(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        private, public = _draw(secret)
        connection.sendall(_MAGIC[secret is not None] + public)
        theirs = exactly(connection, len(_MAGIC[True]) + _DRAWN)
        magic, theirs = theirs[:-_DRAWN], theirs[-_DRAWN:]
        if magic != _MAGIC[secret is not None]:
            raise StrangerError(_other_language(magic, secret))
        keys = _keys(secret, private, (public, theirs) if is_first else (theirs, public), context)
        seal, unseal = keys if is_first else keys[::-1]
        wire = Wire(connection, seal, unseal, context)
        wire.send(CONFIRMATION)
        if not hmac.compare_digest(wire.receive(len(CONFIRMATION)), CONFIRMATION):
            raise StrangerError("it does not speak as digrad does")
        connection.settimeout(None)
    except (OSError, StrangerError):
        connection.close()
        raise
    return wire


def _draw(secret: bytes | None) -> tuple[Any, bytes]:
    """Return what this end contributes to the keys, the private and the public part."""
    if secret is None:
        return None, secrets.token_bytes(_DRAWN)
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private = X25519PrivateKey.generate()
    return private, private.public_key().public_bytes_raw()


def _keys(
    secret: bytes | None, private: Any, drawn: tuple[bytes, bytes], context: bytes
) -> tuple[bytes | None, bytes | None]:
    """Return the keys of both directions, from the end that made the connection and to it.

    They depend on the secret, so that only who knows it has them, and on an exchange of Diffie and Hellman, so that
    who learns the secret later cannot read what was recorded.
    """
    if secret is None:
        return None, None
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    first, second = drawn
    theirs = second if private.public_key().public_bytes_raw() == first else first
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:  # a point that would make the exchange void
        raise StrangerError("it has drawn an impossible number") from error
    salt = hashlib.sha256(first + second + context).digest()
    made = HKDF(SHA256(), 64, salt, b"digrad connection 1").derive(shared + secret)
    return made[:32], made[32:]


def _room(buffer: bytearray, size: int) -> memoryview:
    """Return the first bytes of a buffer, which grows as needed: a stranger is not given room for a whole piece."""
    if len(buffer) < size:
        buffer.extend(bytes(size - len(buffer)))
    return memoryview(buffer)[:size]


def _cipher(key: bytes | None) -> Any:
    if key is None:
        return None
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag


def exactly(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes of a connection."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the other end has closed the connection")
        data += more
    return data


def _other_language(magic: bytes, secret: bytes | None) -> str:
    if magic == _MAGIC[secret is None]:
        return "it has no key" if secret is not None else "it asks for a key"
    return "it does not speak as digrad does"
