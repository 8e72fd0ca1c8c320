"""Keys of a run: ZeroMQ's CURVE encrypts and authenticates all that travels between its machines.

All machines of a run have one key pair, in the format of pyzmq's certificates. Both ends of a connection prove that
they know its secret half; the keys of the connection itself are drawn afresh by ZeroMQ.
"""

import contextlib
import os
import socket as sockets
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from digrad.errors import ArgumentError, StorageError

HANDSHAKE_TIMEOUT = (
    5.0  # seconds in which the other end of a new connection must have proved that it knows the key
)
KEY_VARIABLE = "DIGRAD_KEY_FILE"  # where the workers of a machine find the key of the run
_LENGTH = 40  # characters of a key in Z85
_UNKNOWN = "an address that has gone"
_LOGGED = 100  # refused addresses that are logged: whoever has many cannot fill the log


class KeyPair(NamedTuple):
    """The keys of a run, in Z85."""

    public: bytes
    secret: bytes


def require_zmq(owner: str) -> Any:
    """Return the module ``zmq``.

    Raises:
        ArgumentError: It is not installed, or was built without CURVE; the message says what to do.
    """
    try:
        import zmq
    except ImportError as error:
        raise ArgumentError(
            f"{owner} needs ZeroMQ to connect several machines; install it with `pip install pyzmq`. Agents of one "
            "machine that share memory do without."
        ) from error
    if not zmq.has("curve"):
        raise ArgumentError(f"{owner} needs a ZeroMQ with CURVE; the wheels of `pip install pyzmq` have it.")
    return zmq


def make_key(path: str | os.PathLike[str]) -> Path:
    """Write a new key that only its owner can read; a file that is there already is left alone.

    Raises:
        ArgumentError: The file exists.
        StorageError: It cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     keys = read_key(make_key(Path(folder) / "run.key"))
        >>> len(keys.public), len(keys.secret)
        (40, 40)
    """
    require_zmq("keygen")
    from zmq import auth

    path = Path(path)
    with tempfile.TemporaryDirectory() as private:
        text = Path(auth.create_certificates(private, "run")[1]).read_text(encoding="utf8")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ArgumentError(
            f"`{path}` exists, and a key that machines share is not overwritten; give another file."
        ) from error
    except OSError as error:
        raise StorageError(error.errno, error.strerror or str(error), str(path)) from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    except OSError as error:
        path.unlink(missing_ok=True)  # half a key would keep the next one out
        raise StorageError(error.errno, error.strerror or str(error), str(path)) from error
    return path


def read_key(path: str | os.PathLike[str]) -> KeyPair:
    """Return the keys in a file.

    Raises:
        ArgumentError: It is missing, holds no key, or others can read it.
    """
    require_zmq("`key_file`")
    from zmq import auth

    path = Path(path)
    try:
        mode = path.stat().st_mode
        path.open("rb").close()
    except OSError as error:
        raise ArgumentError(
            f"`key_file` of launch cannot be read ({path}: {error.strerror}); make one with `digrad keygen {path}` and "
            "copy it to all machines."
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ArgumentError(
            f"`key_file` of launch can be read by others (`{path}` has mode {stat.S_IMODE(mode):o}); "
            f"run `chmod 600 {path}`, and make a new key if somebody may have seen it."
        )
    keys: list[bytes | None] = [None]
    with contextlib.suppress(ValueError):
        keys = list(auth.load_certificate(path))
    if any(key is None or len(key) != _LENGTH for key in keys):
        raise ArgumentError(
            f"`key_file` of launch must hold a key made by `digrad keygen`, but `{path}` does not."
        )
    return KeyPair(*keys)  # pyright: ignore[reportArgumentType]


def secure(socket: Any, keys: KeyPair | None, *, server: bool) -> None:
    """Make a ZeroMQ socket encrypt and authenticate; call before it is bound or connected.

    Args:
        socket: The socket.
        keys: Of the run; None leaves it plain.
        server: Whether it listens; then its context needs :func:`authenticate`.
    """
    socket.handshake_ivl = int(1000 * HANDSHAKE_TIMEOUT)
    if keys is None:
        return
    socket.curve_publickey, socket.curve_secretkey = keys
    if server:
        socket.curve_server = True
        socket.zap_domain = b"digrad"
    else:
        socket.curve_serverkey = keys.public


def authenticate(context: Any, keys: KeyPair | None) -> Any:
    """Let sockets of a context that listen accept nobody without the key; return what to ``stop()``, if anything."""
    if keys is None:
        return None
    from zmq.auth.thread import ThreadAuthenticator

    class Provider:
        """Accepts the key of the run."""

        def callback(self, domain: str, key: bytes) -> bool:
            return key == keys.public

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("digrad", Provider())
    return authenticator


class Refusals:
    """Logs one line for each address whose connections a listening socket refuses, from the events of its monitor."""

    def __init__(self) -> None:
        import zmq

        self._zmq = zmq
        self.failures = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self.failures |= zmq.EVENT_HANDSHAKE_FAILED_AUTH
        self.events = self.failures | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        self._addresses: dict[int, str] = {}  # of connections, by descriptor
        self._logged: set[str] = set()
        self._has_failed = False  # a failed handshake is followed by the end of its connection

    def note(self, event: Any) -> None:
        """Take an event into account."""
        if event["event"] == self._zmq.EVENT_ACCEPTED:
            self._addresses[event["value"]] = _peer(event["value"])
        elif event["event"] & self.failures:
            self._has_failed = True
        elif event["event"] == self._zmq.EVENT_DISCONNECTED:
            address = self._addresses.pop(event["value"], _UNKNOWN)
            is_new = address not in self._logged and not (address == _UNKNOWN and self._logged)
            if self._has_failed and is_new and len(self._logged) < _LOGGED:
                self._logged.add(address)
                sys.stderr.write(
                    f"digrad: refused a connection from {address}: it has not proved that it knows the key\n"
                )
                sys.stderr.flush()
            self._has_failed = False


def _peer(descriptor: int) -> str:
    # It may have gone already.
    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
        return connection.getpeername()[0]
    return _UNKNOWN
