"""The rendezvous over loopback, and as a plug-in of torchrun."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch.distributed as dist
import zmq
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from digrad.errors import ArgumentError
from digrad.torch.launch import rendezvous
from digrad.torch.launch import rendezvous_endpoint as endpoint_module
from digrad.torch.launch.rendezvous import Rendezvous
from digrad.torch.launch.rendezvous_endpoint import Client, EndpointLostError
from digrad.torch.launch.rendezvous_store import RendezvousStore
from digrad.torch.transport import curve_keys
from digrad.torch.transport.curve_keys import make_key, read_key, secure
from plugin_installs import announce_rendezvous
from torch_processes import WORKERS, Agents, free_port


@pytest.fixture(autouse=True)
def unchanged_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@contextlib.contextmanager
def machines(folder: Path, n: int = 2, **options: Any) -> Iterator[list[Rendezvous]]:
    """Give machines that meet on loopback."""
    key, endpoint = str(make_key(folder / "run.key")), f"127.0.0.1:{free_port()}"
    made = [Rendezvous(n, endpoint=endpoint, key_file=key, rank=rank, **options) for rank in range(n)]
    yield made
    for one in reversed(made):
        one.shutdown()


def meet(*made: Rendezvous) -> list[Any]:
    """Let machines wait for the next round at the same time."""
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda i=i, one=one: found.update({i: one.next_rendezvous()}))
        for i, one in enumerate(made)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[i] for i in range(len(made))]


def until(found: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_machines_meet_and_each_round_has_a_fresh_store(tmp_path: Path) -> None:
    with machines(tmp_path) as (one, other):
        first, second = meet(one, other)
        assert [(info.rank, info.world_size) for info in (first, second)] == [(0, 2), (1, 2)]
        check_store(first.store, second.store)
        assert one.num_nodes_waiting() == 0
        waiting = threading.Thread(target=other.next_rendezvous)
        waiting.start()
        until(one.num_nodes_waiting)
        again = one.next_rendezvous()
        waiting.join(30)
        assert os.environ["DIGRAD_ROUND"] == "1"
        assert not again.store.check(["bytes"])
        with pytest.raises(dist.DistStoreError, match="this attempt is over"):
            first.store.check(["bytes"])


class LeftError(Exception):
    """Raised where torchelastic waits for other machines."""


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    with pytest.raises(LeftError):
        yield


def test_signal_and_lost_machine_are_seen_while_a_round_begins(tmp_path: Path) -> None:
    """torchelastic then waits in the store for what the other machine says of its agents."""

    def leave() -> NoReturn:
        raise LeftError

    signals: list[int] = []
    options: dict[str, Any] = {"check": lambda: leave() if signals else None, "start_over": leave}
    with machines(tmp_path, **options) as (one, other):
        first, _ = meet(one, other)
        first.store.set_timeout(timedelta(seconds=20))
        signals.append(signal.SIGTERM)
        with leaving():
            first.store.wait(["rank of machine 1"])
        signals.clear()
        waiting = threading.Thread(target=other.next_rendezvous)
        waiting.start()
        with leaving():
            first.store.get("rank of machine 1")
        one.next_rendezvous()
        waiting.join(30)


def test_lost_machine_is_waited_for_although_its_name_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Any:
        raise ArgumentError("`endpoint` of launch names the unknown host 'first'.")

    endpoint = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(rendezvous, "listen_at", lambda *_: (None, False))  # of another machine
    machine = Rendezvous(2, endpoint=endpoint, timeout=1.5)
    monkeypatch.setattr(rendezvous, "listen_at", lost)
    with pytest.raises(RendezvousTimeoutError, match=f"with the endpoint {endpoint} .* did not join within"):
        machine.next_rendezvous()
    machine.shutdown()


def test_torch_connects_machines_only_where_there_is_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else keeps gloo from the network, which digrad cannot encrypt."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    alone = Rendezvous(1, endpoint=f"127.0.0.1:{free_port()}")
    alone.next_rendezvous()
    alone.shutdown()
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    with machines(tmp_path) as made:
        meet(*made)
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def check_store(one: RendezvousStore, other: RendezvousStore) -> None:
    """Require what torch expects of a store."""
    one.set("bytes", b"\0\xff")
    assert other.get("bytes") == b"\0\xff"
    assert (one.add("n", 2), other.add("n", 3)) == (2, 5)
    assert other.get("n") == b"5"
    with pytest.raises(dist.DistStoreError, match="wait timeout after 100ms, keys: absent"):
        one.wait(["bytes", "absent"], timedelta(seconds=0.1))
    threading.Timer(0.2, lambda: other.set("late", "x")).start()
    assert one.get("late") == b"x"
    assert one.delete_key("late")
    assert not other.check(["late"])
    prefixed = dist.PrefixStore("prefix", one)  # as torch holds it
    prefixed.multi_set(["a", "b"], ["1", "2"])
    assert prefixed.multi_get(["b", "a"]) == [b"2", b"1"]
    assert (prefixed.delete_key("a"), prefixed.check(["a"]), prefixed.check(["b"])) == (True, False, True)
    assert prefixed.num_keys() == one.num_keys()
    before = one.timeout
    prefixed.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(dist.DistStoreError, match="wait timeout after 100ms"):
        prefixed.get("absent")
    one.set_timeout(before)


def check_refusal(machine: Rendezvous) -> None:
    with pytest.raises(ArgumentError, match="give all machines the same --key-file, or choose another port"):
        machine.next_rendezvous()
    machine.shutdown()


def test_unauthenticated_peer_is_refused_and_nonsense_of_a_member_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with machines(tmp_path) as made:
        first, _ = meet(*made)
        endpoint = os.environ["DIGRAD_STORE"]
        others = str(make_key(tmp_path / "other.key"))
        for key in (others, None):
            check_refusal(Rendezvous(2, endpoint=endpoint, key_file=key))
        with zmq.Context() as context, context.socket(zmq.DEALER) as member:
            secure(member, read_key(tmp_path / "run.key"), server=False)
            member.connect(f"tcp://{endpoint}")
            for nonsense in (
                b"[" * 100_000,
                b"[]",
                b"\xff",
                b"{}",
                json.dumps({"op": "join", "id": 1}).encode(),
            ):
                member.send(nonsense)
        first.store.set("a", "b")
        assert first.store.get("a") == b"b"
        assert not any(one.num_nodes_waiting() for one in made)
    assert "refused a connection from 127.0.0.1" in capsys.readouterr().err


def test_port_of_another_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_keys, "HANDSHAKE_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        endpoint = f"127.0.0.1:{busy.getsockname()[1]}"
        check_refusal(Rendezvous(2, endpoint=endpoint))


def test_missing_machine_is_waited_for_by_name_and_given_up_in_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with machines(tmp_path, timeout=5.0) as (one, other):
        meet(one, other)
        with pytest.raises(RendezvousTimeoutError, match=r"machine 1 \(127.0.0.1\) did not join within 5 s"):
            one.next_rendezvous()
    assert "digrad: waiting for machine 1 (127.0.0.1), for at most 2 s more" in capsys.readouterr().err


def test_repeated_request_is_not_added_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with machines(tmp_path) as made:
        meet(*made)
        client = Client(os.environ["DIGRAD_STORE"], read_key(tmp_path / "run.key"))
        monkeypatch.setattr(endpoint_module, "_RESEND", 0.0)
        store = RendezvousStore(client, 0)
        assert [store.add("n", 1) for _ in range(3)] == [1, 2, 3]
        client.close()


def test_client_may_be_closed_while_another_thread_asks() -> None:
    """As the heartbeat does at the end of a run whose endpoint has gone."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"127.0.0.1:{silent.getsockname()[1]}", None)
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                client.ask(patience=0.5, op="heartbeat")
            except BaseException as error:
                raised.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.1)
        client.close()
        asking.join(10)
    assert [type(error) for error in raised] == [EndpointLostError]


TORCHRUN = ("torch.distributed.run", "--nproc-per-node=1", "--max-restarts=1")


@pytest.mark.long
def test_two_torchruns_restart_together_after_a_kill_and_end_right(tmp_path: Path) -> None:
    """No file of ours starts anything: the entry point makes the rendezvous known to torchrun."""
    key, endpoint = make_key(tmp_path / "run.key"), f"127.0.0.1:{free_port()}"
    options = (
        "--nnodes=2",
        "--rdzv-backend=digrad",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-conf=key_file={key}",
    )
    worker = (str(WORKERS / "without_torch.py"), "killed", str(tmp_path))
    announced = {0: {"PYTHONPATH": announce_rendezvous(tmp_path / "installed")}}
    with contextlib.ExitStack() as stack:
        torchruns = [
            stack.enter_context(Agents("module.py", 1, *TORCHRUN, *options, *worker, extra=announced))
            for _ in range(2)
        ]
        ended = [torchrun.wait(240)[0] for torchrun in torchruns]
    assert [one.code for one in ended] == [0, 0], ended
    averages = [path.read_bytes() for path in sorted(tmp_path.glob("average-*"))]
    assert len(averages) == 2
    assert len(set(averages)) == 1


@pytest.mark.long
def test_worker_of_a_plain_torchrun_ends_with_it(tmp_path: Path) -> None:
    command = (*TORCHRUN, str(WORKERS / "launched.py"), "forever", str(tmp_path))
    with Agents("module.py", 1, *command) as torchrun:
        until((tmp_path / "training-0").exists, 240)
        pid = torchrun.processes[0].pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{child}").exists(), 10)
