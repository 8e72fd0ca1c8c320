"""What travels between machines cannot be read, changed, repeated, left out or cut short by who lacks the secret."""

import socket
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from digrad.torch.machines.sealed import PIECE, TAG, StrangerError, Wire, meet

SECRET, OTHER = bytes(32), bytes([1]) * 32
ARC = b"arc 0 to 1"
MESSAGE = bytes(range(256)) * 5000  # more than one piece


def both(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """Run two ends at the same time; return what each returned or raised."""
    found: list[Any] = [None, None]

    def run(place: int, end: Callable[[], Any]) -> None:
        try:
            found[place] = end()
        except (OSError, StrangerError) as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        return first, server.accept()[0]


def wires(first: bytes | None, second: bytes | None, contexts: tuple[bytes, bytes] = (ARC, ARC)) -> list[Any]:
    ends = pair()
    return both(
        lambda: meet(ends[0], first, contexts[0], is_first=True, timeout=5),
        lambda: meet(ends[1], second, contexts[1], is_first=False, timeout=5),
    )


@pytest.mark.parametrize("secret", [SECRET, None], ids=["sealed", "plain"])
def test_message_arrives_as_it_was_sent_both_ways(secret: bytes | None) -> None:
    one, two = wires(secret, secret)
    for sender, receiver in ((one, two), (two, one)):
        ends = partial(sender.send, MESSAGE, b"step 3"), partial(receiver.receive, len(MESSAGE), b"step 3")
        _, received = both(*ends)
        assert received == MESSAGE
    one.close()
    two.close()


@pytest.mark.parametrize(
    ("secrets", "contexts", "reason"),
    [
        ((SECRET, OTHER), (ARC, ARC), "sealed with another key"),
        ((SECRET, SECRET), (ARC, b"arc 1 to 0"), "sealed with another key"),
        ((SECRET, None), (ARC, ARC), "it has no key|it asks for a key"),
    ],
    ids=["other key", "other arc", "no key"],
)
def test_stranger_is_refused_at_both_ends(
    secrets: tuple[bytes | None, bytes | None], contexts: tuple[bytes, bytes], reason: str
) -> None:
    for error in wires(*secrets, contexts):
        assert isinstance(error, StrangerError | ConnectionError)
        if isinstance(error, StrangerError):
            with pytest.raises(StrangerError, match=reason):
                raise error


class Between:
    """Somebody on the path who sees, and may change, what one end sends to the other."""

    def __init__(self) -> None:
        self.sender, inner = pair()
        outer, self.receiver = pair()
        self.inner, self.outer = inner, outer

    def pass_on(self, source: socket.socket, target: socket.socket, size: int) -> bytes:
        data = source.recv(size, socket.MSG_WAITALL)
        target.sendall(data)
        return data

    def greet(self) -> list[Wire]:
        greeting = 16 + 32  # a word and what was drawn
        confirmation = 6 + TAG

        def between() -> None:
            for size in (greeting, confirmation):
                self.pass_on(self.inner, self.outer, size)
                self.pass_on(self.outer, self.inner, size)

        thread = threading.Thread(target=between)
        thread.start()
        found = both(
            lambda: meet(self.sender, SECRET, ARC, is_first=True, timeout=5),
            lambda: meet(self.receiver, SECRET, ARC, is_first=False, timeout=5),
        )
        thread.join()
        return found

    def close(self) -> None:
        for end in (self.sender, self.receiver, self.inner, self.outer):
            end.close()


@pytest.mark.parametrize("deed", ["read", "change", "repeat", "leave out", "cut short", "swap", "other step"])
def test_party_on_the_path_can_neither_read_nor_change_anything(deed: str) -> None:
    between = Between()
    sender, receiver = between.greet()
    for number in range(2):
        sender.send(bytes([number]) * 100, b"step 3")
    packets = [between.inner.recv(100 + TAG, socket.MSG_WAITALL) for _ in range(2)]
    assert not any(bytes([number]) * 8 in packet for number, packet in enumerate(packets))
    changed = bytearray(packets[0])
    changed[50] ^= 1
    passed = {
        "read": packets,
        "change": [bytes(changed), packets[1]],
        "repeat": [packets[0], packets[0]],
        "leave out": [packets[1]],
        "cut short": [packets[0], packets[1][:-1]],
        "swap": packets[::-1],
        "other step": packets,
    }[deed]
    between.outer.sendall(b"".join(passed))
    between.outer.shutdown(socket.SHUT_WR)
    received, error = [], None
    try:
        for _ in range(2):
            received.append(receiver.receive(100, b"step 4" if deed == "other step" else b"step 3"))
    except (StrangerError, ConnectionError) as found:
        error = found
    between.close()
    if deed == "read":
        assert received == [bytes([number]) * 100 for number in range(2)]
    else:
        assert error is not None
        assert received in ([], [bytes(100)])  # never a number that was not sent


def test_message_of_several_pieces_cannot_be_rearranged() -> None:
    between = Between()
    sender, receiver = between.greet()
    thread = threading.Thread(target=lambda: sender.send(bytes(2 * PIECE)))
    thread.start()
    first, second = (between.inner.recv(PIECE + TAG, socket.MSG_WAITALL) for _ in range(2))
    thread.join()
    relay = threading.Thread(target=lambda: between.outer.sendall(second + first))
    relay.start()
    with pytest.raises(StrangerError, match="changed on the way, repeated, or sealed with another key"):
        receiver.receive(2 * PIECE)
    receiver.close()
    with_error = relay.join(5)
    between.close()
    assert with_error is None


def test_greeting_a_stranger_takes_little_memory() -> None:
    for wire in wires(SECRET, SECRET):  # loads the code
        wire.close()
    tracemalloc.start()
    found = wires(SECRET, OTHER)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(isinstance(one, StrangerError | OSError) for one in found)
    assert peak < PIECE / 4


def test_keys_are_drawn_afresh_for_every_connection() -> None:
    seen = set()
    for _ in range(2):
        between = Between()
        sender, _ = between.greet()
        sender.send(bytes(100))
        seen.add(between.inner.recv(100 + TAG, socket.MSG_WAITALL))
        between.close()
    assert len(seen) == 2
