"""An unauthenticated peer: throws garbage at the ports of a run, and what torch's own store and pickle understand."""

import contextlib
import os
import pickle
import socket
import sys
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]


class Evil:
    """Object that runs a program where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {sys.argv[1]}",)


GARBAGE = [
    b"",
    b"GET / HTTP/1.0\r\n\r\n",
    os.urandom(4096),
    b"\xff" * 4096,
    pickle.dumps(Evil()),
    # The greeting of ZMTP, and then nothing, or what is no handshake.
    *(
        b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32) + rest
        for mechanism in (b"NULL", b"CURVE")
        for rest in (b"", os.urandom(96))
    ),
]


def main(*targets: str) -> None:
    for host, port in (target.rsplit(":", 1) for target in targets):
        for data in GARBAGE:
            with socket.create_connection((host, int(port)), 5) as connection, contextlib.suppress(OSError):
                connection.sendall(data)
        with contextlib.suppress(RuntimeError):
            TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=1)).set("evil", "1")
            sys.exit("the store has let an unauthenticated peer in")


if __name__ == "__main__":
    main(*sys.argv[2:])
