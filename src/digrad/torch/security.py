"""Which interface the processes use, and whether their traffic is encrypted: asked for, or refused."""

import os

import torch.distributed as dist

from digrad.errors import ArgumentError, CommunicationError
from digrad.torch.addresses import check_interface
from digrad.torch.reasons import first_line

INTERFACE = "GLOO_SOCKET_IFNAME"
TRANSPORT = "GLOO_DEVICE_TRANSPORT"
TLS = "TCP_TLS"


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


def require_tls(tls: bool) -> None:
    """Refuse to go on when TLS is asked for, here or in the environment, but this build of torch has none.

    Raises:
        CommunicationError: There is no TLS; nothing has been sent.
    """
    asked = os.environ.get(TRANSPORT, "").upper() == TLS
    if not (tls or asked):
        return
    if tls and dist.is_initialized() and not asked:
        raise CommunicationError(
            f"`tls` of ProcessNetwork is set, but the process group already exists without it; set "
            f"{TRANSPORT}={TLS} before init_process_group."
        )
    os.environ[TRANSPORT] = TLS
    try:
        dist.ProcessGroupGloo.create_device(interface=os.environ.get(INTERFACE, "lo"))
    except RuntimeError as error:
        raise CommunicationError(
            f"TLS is required, but this build of torch cannot provide it ({first_line(error)}); use a build with "
            f"USE_GLOO_WITH_OPENSSL and set {TRANSPORT}_TCP_TLS_PKEY, _CERT and _CA_FILE, or run inside "
            "WireGuard and leave `tls` out. Nothing was sent."
        ) from error
