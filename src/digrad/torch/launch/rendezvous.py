"""The rendezvous of torchrun's backend ``digrad``: machines with the same key meet at an endpoint, round by round.

A plug-in of torchelastic, by the entry point ``torchrun.handlers``::

    torchrun --nnodes 3 --nproc-per-node 2 --rdzv-backend digrad --rdzv-endpoint 10.8.0.1:29400 \\
        --rdzv-conf key_file=run.key train.py

The machine that has the endpoint keeps the state (:mod:`digrad.torch.launch.rendezvous_rounds`); each round has a fresh
store. On one machine there is nobody to meet, and no ZeroMQ: the store is torch's, on loopback only.
"""

import contextlib
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

import digrad
from digrad._internal.error_text import one_line
from digrad.errors import ArgumentError
from digrad.torch.launch import ADDRESS_VARIABLE, INTERFACES, REJOIN, ROUND_VARIABLE, STORE_VARIABLE
from digrad.torch.launch.failures import FAILED, say
from digrad.torch.launch.rendezvous_endpoint import (
    Client,
    EndpointLostError,
    EndpointRefusedError,
    Message,
    Server,
)
from digrad.torch.launch.rendezvous_rounds import Outcome, Rounds
from digrad.torch.launch.rendezvous_store import RendezvousStore
from digrad.torch.launch.worker import PARENT_VARIABLE
from digrad.torch.transport.addresses import (
    check_trust,
    endpoint_parts,
    listen_at,
    listening_socket,
    published_address,
)
from digrad.torch.transport.curve_keys import KEY_VARIABLE, read_key, require_zmq

BACKEND = "digrad"
_HEARTBEAT = 1.0  # seconds between two heartbeats
_POLL = 0.1  # seconds between two looks whether all machines have come
_FIRST_NOTICE, _NOTICE_INTERVAL = 3.0, 30.0  # seconds after which, and then how often, to say who is missing


class Rendezvous(RendezvousHandler):
    """One machine of a run, as torchelastic sees it.

    Args:
        nodes: Machines.
        endpoint: ``host:port`` of one of them; None on a single machine.
        key_file: A file of ``digrad keygen``; None trusts whoever is there.
        insecure: Do so although others than this machine can reach the endpoint.
        rank: The number of this machine; None takes a free one.
        timeout: Seconds to wait for machines that have not come, or have gone.
        interface: Whose address the agents listen on; by default the one from which the endpoint is reached.
        address: The same as an address.
        run_id: For torchelastic.
        facts: Settings on which all machines must agree.
        check: Called while this machine waits; may raise.
        tell: Called with what is to be said of a round that has ended.
        start_over: Called if a round is over, for whatever reason, while this machine waits for others.
    """

    def __init__(
        self,
        nodes: int,
        *,
        endpoint: str | None = None,
        key_file: str | None = None,
        insecure: bool = False,
        rank: int | None = None,
        timeout: float = REJOIN,
        interface: str | None = None,
        address: str | None = None,
        run_id: str = "digrad",
        facts: dict[str, Any] | None = None,
        check: Callable[[], None] = lambda: None,
        tell: Callable[[Outcome], None] = lambda outcome: say(outcome.line) if outcome.line else None,
        start_over: Callable[[], NoReturn] | None = None,
    ) -> None:
        self._nodes, self._asked, self._timeout, self._run_id = nodes, rank, timeout, run_id
        self._check, self._tell, self._start_over = check, tell, start_over or _execute_again
        common = {"version": digrad.__version__, "nodes": nodes, "graph": None, "max_restarts": None}
        self._facts = {**common, **(facts or {})}
        self._name, self._round, self._last = uuid.uuid4().hex, -1, None
        self.failures: list[dict[str, Any]] = []  # of the agents of this machine in the present round
        self.outcome: Outcome | None = None  # of a run that has ended
        self._over = -1  # the last round of which the endpoint has said that it is over
        self._is_leaving = threading.Event()
        self._heart = threading.Thread(target=self._send_heartbeats, name="digrad-heartbeat", daemon=True)
        self._rounds, self._server, self._client = Rounds(nodes), None, None
        self._address, self._interface = address or published_address(interface) or "127.0.0.1", interface
        self._key_file, self._keys = key_file, None if key_file is None else read_key(key_file)
        self._host = ""
        if endpoint is not None:
            require_zmq("launch")
            self._host, self._port = endpoint_parts(endpoint)
            check_trust(self._host, has_key=key_file is not None, insecure=insecure)
            is_taken = self._host_rounds()
            if address is None and interface is None:
                self._address = _address_towards(self._host, self._port)
            host = f"[{self._host}]" if ":" in self._host else self._host
            self._client = Client(f"{host}:{self._port}", self._keys, is_local=is_taken)

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the name of the run."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Return whether workers may use the store at MASTER_ADDR: on one machine, which listens on loopback."""
        return self._client is None

    @property
    def place(self) -> str:
        """Name of this machine."""
        return f"machine {'?' if self._last is None else self._last} ({self._address})"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all machines have come, and begin the next round."""
        answer = self._join()
        self._round, self._last, self.failures = answer["round"], answer["rank"], []
        self._tell(Outcome(**answer["told"]))
        if self._client is None:
            store, at = self._local_store()
        else:
            store = _AgentStore(self._client, self._round, self._needs_another_round)
            at = RendezvousStoreInfo.build(self._last, store, self._address)
            if self._heart.ident is None:
                self._heart.start()
        os.environ.update(self._variables())
        return RendezvousInfo(store, self._last, self._nodes, at)

    def num_nodes_waiting(self) -> int:
        """Return 1 if another round is wanted: a machine waits for it, or was lost, or the run has ended."""
        return int(self._over == self._round)

    def is_closed(self) -> bool:
        """Return whether the run has ended."""
        return self.outcome is not None

    def set_closed(self) -> None:
        """End the run for all machines."""
        self.close("the run was closed", FAILED)

    def close(self, line: str, code: int) -> Outcome:
        """End the run for all machines, unless it has ended; return how it has.

        Args:
            line: Why.
            code: The exit code of ``digrad launch`` there.
        """
        if self.outcome is None:
            self.outcome = Outcome(line, code)
            with contextlib.suppress(EndpointLostError):  # it may have ended for another reason
                self.outcome = Outcome(**self._ask(op="close", line=line, code=code, patience=2.0)["closed"])
        return self.outcome

    def shutdown(self) -> bool:
        """Leave; end the run for all machines if an error ends this one."""
        error = sys.exc_info()[1]
        if error is not None and self._round >= 0:  # else it was none of this run's machines
            self.close(f"{self.place}: {_reason(error)}", FAILED)
        self._is_leaving.set()
        with contextlib.suppress(EndpointLostError):
            self._ask(op="leave", name=self._name, patience=2.0)
        if self._server is not None:
            self._server.close()
        if self._client is not None:
            self._client.close()
        return True

    def _ask(self, patience: float = _HEARTBEAT, **request: Any) -> Message:
        if self._client is None:
            return self._rounds.answer(request)
        return self._client.ask(patience, **request)

    def _host_rounds(self) -> bool:
        """Keep the state of the run if this is the machine with the endpoint; return whether the port is taken here."""
        listener, is_taken = listen_at(self._host, self._port, self._interface)
        if listener is not None:
            self._host, self._port = listener.getsockname()[:2]
            self._server = Server(listener, self._keys, self._rounds)
        return is_taken

    def _join(self) -> Message:
        began, noticed = time.monotonic(), -_NOTICE_INTERVAL + _FIRST_NOTICE
        answer: Message
        while True:
            self._check()
            try:
                answer = self._ask(
                    op="join", name=self._name, address=self._address, facts=self._facts, rank=self._asked,
                    last=self._last, after=self._round, failures=self.failures, patience=_HEARTBEAT,
                )  # fmt: skip
            except EndpointRefusedError as error:
                raise ArgumentError(
                    f"`endpoint` of launch is '{self._host}:{self._port}', but what listens there does not have "
                    "the key of this machine, or is another program: give all machines the same --key-file, or choose "
                    "another port."
                ) from error
            except EndpointLostError as error:
                missing = f"the machine with the endpoint {self._host}:{self._port} ({error})"
                answer = {"missing": [missing]}
                if self._server is None:
                    # It may be this one, where an earlier run has just ended; the name of a lost one may be gone.
                    with contextlib.suppress(ArgumentError):
                        self._host_rounds()
            if "round" in answer:
                return answer
            if "closed" in answer:
                self.outcome = Outcome(**answer["closed"])
                raise RendezvousClosedError(self.outcome.line)
            if "refused" in answer:
                raise ArgumentError(
                    f"the machine with the endpoint {self._host}:{self._port} refuses: {answer['refused']}."
                )
            waited, names = time.monotonic() - began, ", ".join(answer["missing"])
            if waited > self._timeout:
                raise RendezvousTimeoutError(
                    self.close(f"{names} did not join within {self._timeout:.0f} s", FAILED).line
                )
            if names and waited - noticed > _NOTICE_INTERVAL:
                noticed = waited
                say(f"waiting for {names}, for at most {self._timeout - waited:.0f} s more")
            time.sleep(_POLL)

    def _send_heartbeats(self) -> None:
        """Say that this machine is there, and learn whether the present round is over."""
        while not self._is_leaving.wait(_HEARTBEAT):
            number, is_over = self._round, True
            with contextlib.suppress(EndpointLostError):
                is_over = self._client.ask(op="heartbeat", name=self._name, round=number)["over"]  # pyright: ignore
            self._over = number if is_over else self._over

    def _needs_another_round(self) -> None:
        """Start over if the round is over while torchelastic waits for other machines."""
        self._check()
        if self.num_nodes_waiting():
            self._start_over()

    def _local_store(self) -> tuple[Store, RendezvousStoreInfo]:
        """Return a new store that listens on loopback only."""
        listener = listening_socket("127.0.0.1", 0)
        port = listener.getsockname()[1]
        store = TCPStore(
            "127.0.0.1", port, is_master=True, timeout=timedelta(seconds=self._timeout), wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
        return store, RendezvousStoreInfo("127.0.0.1", port)

    def _variables(self) -> dict[str, str]:
        """Return what the workers of a round find in their environment."""
        variables = {ROUND_VARIABLE: str(self._round), PARENT_VARIABLE: str(os.getpid())}
        if self._client is None:
            return variables
        variables |= {STORE_VARIABLE: self._client.endpoint, ADDRESS_VARIABLE: self._address}
        if self._key_file is not None:
            # Between machines digrad has connections of its own: those of torch, which it cannot encrypt, stay at home.
            local = dict.fromkeys(INTERFACES, "lo")
            variables |= {KEY_VARIABLE: os.path.abspath(self._key_file), **local}
        return {**variables, "TORCH_GLOO_LAZY_INIT": "1"}  # connect with whom there is something to say


class _AgentStore(RendezvousStore):
    """The store of a round for torchelastic itself, which waits there for the other machines."""

    def __init__(self, client: Client, number: int, look: Callable[[], None]) -> None:
        super().__init__(client, number)
        self._look = look

    def _wait(self, keys: list[str], seconds: float) -> list[str]:
        missing = super()._wait(keys, min(seconds, 0.5))
        if missing:
            self._look()
        return missing


def _execute_again() -> NoReturn:
    """Replace this process, a torchrun whose workers have ended, by the same command."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _address_towards(host: str, port: int) -> str:
    """Return the address from which a host is reached; nothing is sent."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        try:
            probe.connect(address)
        except OSError as error:
            raise ArgumentError(
                f"`endpoint` is {host}:{port}, which cannot be reached from here ({error})."
            ) from error
        return probe.getsockname()[0]


def _reason(error: BaseException) -> str:
    """Return in one line why torchelastic ends."""
    if isinstance(error, ChildFailedError):
        rank, failure = error.get_first_failure()
        record: Any = failure.message  # a text, or what the worker has written into its error file
        message = record["message"] if isinstance(record, dict) else record
        return f"agent {rank} failed: {' '.join(str(message).split())}"
    return one_line(error)


def create_handler(parameters: RendezvousParameters) -> Rendezvous:
    """Return the rendezvous of a ``torchrun --rdzv-backend digrad``; its ``--rdzv-conf`` takes
    ``key_file``, ``insecure``, ``node_rank``, ``timeout`` and ``interface``.

    Raises:
        ArgumentError: A setting is impossible.
    """
    nodes, settings = parameters.max_nodes, parameters.config
    if parameters.min_nodes != nodes:
        raise ArgumentError(
            f"--nnodes must be one number with --rdzv-backend digrad, but got {parameters.min_nodes}:{nodes}: the "
            "graph has a fixed number of agents."
        )
    if nodes == 1:
        return Rendezvous(1, run_id=parameters.run_id)
    return Rendezvous(
        nodes, endpoint=parameters.endpoint, key_file=settings.get("key_file"),
        insecure=bool(parameters.get_as_bool("insecure", False)), rank=parameters.get_as_int("node_rank"),
        timeout=float(settings.get("timeout", REJOIN)), interface=settings.get("interface"),
        address=parameters.local_addr, run_id=parameters.run_id,
    )  # fmt: skip


def handler() -> Callable[[RendezvousParameters], Rendezvous]:
    """Return what makes a rendezvous, as the entry point ``torchrun.handlers`` wants it."""
    return create_handler
