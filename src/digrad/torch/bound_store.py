"""The key-value store through which processes meet, listening on one address.

Left alone, torch listens on all interfaces of the machine, without a password, whatever address it is given.
"""

import contextlib
import os
import socket
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from digrad.torch.addresses import is_address, listening_socket


def _host(listener: socket.socket, world_size: int, timeout: float) -> TCPStore:
    """Return a store that others reach through ``listener``, which belongs to it from now on."""
    host, port = listener.getsockname()[:2]
    return TCPStore(
        host,
        port,
        world_size,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        master_listen_fd=listener.detach(),
    )


def store_of_group(timeout: float) -> TCPStore | None:
    """Return the store that the environment names, hosted by rank 0 on that address only.

    None leaves it to torch: if torchrun hosts it, or if the environment gives a name, which may not be the address
    by which the other machines reach this one.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if not is_address(host) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    size = int(os.environ["WORLD_SIZE"])
    if os.environ["RANK"] == "0":
        with contextlib.suppress(OSError):  # behind a translated address, which only others can use
            return _host(listening_socket(host, port), size, timeout)
        return None
    return TCPStore(host, port, size, is_master=False, timeout=timedelta(seconds=timeout))
