"""The key-value store through which processes meet, listening on one address.

Left alone, torch listens on all interfaces of the machine, without a password, whatever address it is given.
"""

import contextlib
import os
import socket
import sys
from datetime import timedelta
from typing import Any

import torch.distributed
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from digrad.torch.addresses import is_address, is_loopback, listening_socket


def _host(listener: socket.socket, world_size: int, timeout: float) -> TCPStore:
    """Return a store that others reach through ``listener``, which belongs to it from now on."""
    host, port = listener.getsockname()[:2]
    return TCPStore(
        host,
        port,
        world_size,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,  # the agents say themselves who has come
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
    return TCPStore(
        host, port, size, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False
    )


class LoopbackStore(TCPStore):
    """A TCPStore that listens on its own address only if that is a loopback address."""

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        **options: Any,
    ) -> None:
        if is_master and is_loopback(host_name) and options.get("master_listen_fd") is None:
            with contextlib.suppress(
                OSError
            ):  # taken, perhaps by a store of this process that is to be shared
                listener = listening_socket(host_name, port)
                port = listener.getsockname()[1]
                options["master_listen_fd"] = listener.detach()
        super().__init__(host_name, port, world_size, is_master, **options)


def keep_to_loopback() -> None:
    """Make the stores of scripts that call init_process_group themselves listen on loopback where they live there."""
    rendezvous = sys.modules["torch.distributed.rendezvous"]  # the package has a function of this name
    for module in (torch.distributed, rendezvous):
        module.TCPStore = LoopbackStore  # pyright: ignore[reportAttributeAccessIssue]
