"""Which interface the processes use."""

import os

import torch.distributed as dist

from digrad.errors import ArgumentError
from digrad.torch.addresses import check_interface

INTERFACE = "GLOO_SOCKET_IFNAME"


def bind(interface: str | None) -> None:
    """Make gloo listen on one network interface only.

    Raises:
        ArgumentError: This machine has no such interface, or gloo already uses another.
    """
    if interface is None:
        return
    check_interface(interface, "ProcessNetwork")
    if dist.is_initialized() and os.environ.get(INTERFACE) != interface:
        raise ArgumentError(
            f"`interface` of ProcessNetwork is {interface!r}, but the process group already exists; "
            f"set {INTERFACE}={interface} before init_process_group."
        )
    os.environ[INTERFACE] = interface
