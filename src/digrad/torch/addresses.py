"""Interfaces and endpoints of this machine, checked before torch would try them for minutes; torch is not loaded."""

import errno
import fcntl
import socket
import struct
import subprocess
import sys

from digrad.errors import ArgumentError

_SIOCGIFADDR = 0x8915  # the Linux request for the IPv4 address of an interface
# A foreign server accepts the connection and never answers; the alarm ends the process then.
_CONNECT_TO_STORE = (
    "import signal, sys; from torch.distributed import TCPStore; signal.alarm(5); "
    "TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False)"
)


def check_interface(interface: str, owner: str) -> None:
    """Require a network interface of this machine.

    Raises:
        ArgumentError: There is none of this name.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise ArgumentError(
            f"`interface` of {owner} must be one of {', '.join(names)}, but got {interface!r}."
        )


def published_address(interface: str | None) -> str | None:
    """Return the address under which the others reach this machine; None leaves it to torch: the host name."""
    if interface is None or sys.platform != "linux":
        return None
    request = struct.pack("256s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError as error:
            raise ArgumentError(
                f"`interface` of launch is {interface!r}, which has no IPv4 address that other machines could use; "
                "give it one, or name another interface."
            ) from error
    return socket.inet_ntoa(answer[20:24])  # the address in struct ifreq


def check_endpoint(endpoint: str) -> None:
    """Refuse an endpoint that nobody can listen on; torchrun would try for minutes."""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ArgumentError(
            f"`endpoint` of launch must be host:port, as in 10.8.0.1:29400, but got {endpoint!r}."
        )
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ArgumentError(
            f"`endpoint` of launch names the unknown host {host!r}; give the address of the first machine."
        ) from error
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:  # also when the address is another machine's, which is as it should be
            if error.errno == errno.EADDRINUSE and not _is_store(host, port):
                raise ArgumentError(
                    f"`endpoint` of launch is {endpoint!r}, but another program listens on this port; choose another."
                ) from error


def _is_store(host: str, port: str) -> bool:
    """Return whether torchrun listens there: a second node on one machine finds that of the first."""
    command = [sys.executable, "-c", _CONNECT_TO_STORE, host, port]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
