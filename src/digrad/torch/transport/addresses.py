"""Interfaces and endpoints of this machine, checked before torch would try them for minutes; torch is not loaded."""

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
import sys

from digrad.errors import ArgumentError

_SIOCGIFADDR = 0x8915  # the Linux request for the IPv4 address of an interface


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
    """Return the address under which the others reach this machine; None if no interface was named."""
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


def interface_of(address: str) -> str:
    """Return the name of the interface that has an IPv4 address.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    for _, name in socket.if_nameindex():
        with contextlib.suppress(ArgumentError):  # it has none
            if published_address(name) == address:
                return name
    return "an interface without this address"


def is_address(host: str) -> bool:
    """Return whether ``host`` means the same address everywhere; a name may be another one on this machine.

    >>> is_address("127.0.0.1"), is_address("::1"), is_address("node1.example")
    (True, True, False)
    """
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return host == "localhost"


def is_loopback(host: str) -> bool:
    """Return whether ``host`` can be reached from this machine only, whatever its name service says.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("10.8.0.1"), is_loopback("node1.example")
    (True, True, False, False)
    """
    return is_address(host) and (host == "localhost" or ipaddress.ip_address(host).is_loopback)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host`` only.

    Raises:
        OSError: The address is another machine's, or the port is taken.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def endpoint_parts(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint.

    >>> endpoint_parts("10.8.0.1:29400"), endpoint_parts("[::1]:29400")
    (('10.8.0.1', 29400), ('::1', 29400))

    Raises:
        ArgumentError: It is not of the form host:port.
    """
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ArgumentError(
            f"`endpoint` of launch must be host:port, as in 10.8.0.1:29400, but got {endpoint!r}."
        )
    return host, int(port)


def check_trust(host: str, *, has_key: bool, insecure: bool) -> None:
    """Refuse an endpoint that unauthenticated peers could reach, unless somebody has said that there are none.

    Raises:
        ArgumentError: Neither is the case.
    """
    if not has_key and not insecure and not is_loopback(host):
        raise ArgumentError(
            f"`endpoint` of launch is on {host}, where others could read, disturb or join the run; make a key with "
            "`digrad keygen FILE`, copy it to all machines and use --key-file FILE, or use --insecure "
            "(`insecure=True`) if only machines that you trust can connect, as inside WireGuard."
        )


def listen_at(host: str, port: int, interface: str | None = None) -> tuple[socket.socket | None, bool]:
    """Return a socket that listens at the endpoint if this is the machine that has it, and whether it is taken here.

    Raises:
        ArgumentError: Nobody knows the host, or it is a name that means loopback here, and no interface was given.
    """
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error:
        raise ArgumentError(
            f"`endpoint` of launch names the unknown host {host!r}; give the address of one of the machines."
        ) from error
    if is_loopback(str(address)) and not is_loopback(
        host
    ):  # as Debian has it for the name of a machine itself
        found = published_address(interface)
        if found is None:
            raise ArgumentError(
                f"`endpoint` of launch names this machine {host!r}, which is {address} here and out of reach for "
                "others; give --interface, or an address instead of the name."
            )
        address = found
    try:
        return listening_socket(str(address), port), False
    except OSError as error:
        return None, error.errno == errno.EADDRINUSE
