"""A network whose agents are processes, connected by torch.distributed."""

import contextlib
import hashlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

import digrad
from digrad import checks, graphs
from digrad._internal.error_text import agents_text, first_line
from digrad.core.validation import check_network
from digrad.errors import ArgumentError, CommunicationError, DigradError
from digrad.graphs import Digraph, GraphSequence
from digrad.network import Network
from digrad.torch.engines.log_records import note_agent
from digrad.torch.launch import ADDRESS_VARIABLE, GRAPH_VARIABLE, INTERFACES, ROUND_VARIABLE, STORE_VARIABLE
from digrad.torch.launch.rendezvous_store import SHARED_STORE, store_from_environment
from digrad.torch.launch.worker import die_with_parent, record_uncaught
from digrad.torch.transport.addresses import check_interface, published_address
from digrad.torch.transport.coordination import GRACE, LINGER, Coordination
from digrad.torch.transport.curve_keys import KEY_VARIABLE, read_key
from digrad.torch.transport.packets import MessageLostError
from digrad.torch.transport.shared_memory import SharedMemory
from digrad.torch.transport.torch_distributed import all_reduce
from digrad.torch.transport.transports import Channel, Transports, open_transports, ring_sum

INTERFACE = INTERFACES[0]  # where gloo looks for the network interface
PATIENCE = 300.0  # seconds that an agent waits for another one,
STEPS = 5  # or so many step times if that is longer
SUSPICION = 10.0  # seconds of waiting after which to look where the other one is,
LOOK = 2.0  # and between two looks
STEP = "DecentralizedOptimizer.step()"
_BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")
_HERE = "here"  # what agents say before they wait for one another

_left: list[bool] = []  # whether this process has closed the group that it joined
_instances: dict[str, int] = {}  # networks made on each group so far, the same on every agent


class Awaited(NamedTuple):
    """Whom an agent waits for.

    Args:
        agents: The others.
        progress: Tells when bytes last moved, where that is known.
        call: What it has announced; None in a step.
        since: When it began.
    """

    agents: Sequence[int]
    progress: Callable[[], float] | None
    call: str | None
    since: float

    @property
    def last_progress(self) -> float:
        """Time at which bytes last moved, as far as that is known."""
        return max(self.since, self.progress() if self.progress else self.since)


class ProcessNetwork:
    """A digraph of processes: the agent's number is the rank in the process group.

    Joins the processes that ``digrad launch`` or ``torchrun`` started, unless the group exists already, and
    makes sure that all of them mean the same graph, weights and version. Every agent must construct it.

    Args:
        network: A :class:`~digrad.network.Network`, or a digraph, constant or not; by default the graph
            file named by ``digrad launch``.
        group: A process group whose ranks are the agents; by default the world. For agents that are DDP groups
            pass the group of equal data-parallel ranks.
        timeout: Seconds to wait for a neighbour of which nothing moves; by default 300, or five times the longest step
            so far if that is longer. One that waits elsewhere, in a call that this agent does not make, is an error
            after 10 seconds.
        backend: Backend of the process group, if it does not exist yet: ``gloo``, or ``nccl`` for tensors on GPUs
            (experimental). Packets of tensors on the CPU do not travel over it.
        interface: The network interface to listen on, for example ``lo`` or ``wg0``.
        deadline: Seconds after which an agent goes on without the messages of its neighbours, counted from the end of
            its own last step: late is tolerated (tensors on the CPU only). None waits for all of them.
        max_lag: Steps that a neighbour may be behind before it is waited for nevertheless, not counting those at which
            it sends nothing. None is any number: the minimum is the same, but a model that is trained for a fixed
            number of steps may then forget the data of an agent that was stopped.
        direct: Let agents of the same host and user share memory where the system allows it, which is several times
            faster than loopback.

    Raises:
        ArgumentError: The number of processes is not the number of agents, or a setting is impossible.
        CommunicationError: The others did not come, or disagree; raised on every agent.
    """

    def __init__(
        self,
        network: Network | Digraph | GraphSequence | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        timeout: float | None = None,
        backend: str = "gloo",
        interface: str | None = None,
        direct: bool = True,
        deadline: float | None = None,
        max_lag: int | None = 20,
    ) -> None:
        if timeout is not None:
            checks.positive(timeout, "timeout", "ProcessNetwork")
        if deadline is not None:
            checks.positive(deadline, "deadline", "ProcessNetwork")
        if max_lag is not None:
            checks.count(max_lag, "max_lag", "ProcessNetwork")
        checks.choice(backend, "backend", "ProcessNetwork", _BACKENDS)
        if deadline is not None and backend != "gloo":
            raise ArgumentError(f"`deadline` of ProcessNetwork needs backend='gloo', but got {backend!r}.")
        self.deadline, self.max_lag = deadline, max_lag
        self.network = _as_network(network)
        self._timeout, self._longest_step = timeout, 0.0
        self._optimizers = 0
        self._awaited: Awaited | None = None
        self.watchers: list[Callable[[], None]] = []  # called every two seconds, in a thread
        _bind(interface)
        die_with_parent()
        record_uncaught()
        _check_restart()
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            _join(backend, timeout or PATIENCE)
        self.group: dist.ProcessGroup = group or dist.group.WORLD  # pyright: ignore[reportAttributeAccessIssue]
        self.agent = dist.get_rank(self.group)
        note_agent(self.agent)
        self.coordination = _coordination(self.group, self.agent)
        self.coordination.hang_up = self._hang_up
        graph = f"{self.n} agents, {self.network.union.n_edges} edges, {self.network.content_hash[:16]}"
        facts = {
            "version": digrad.__version__,
            "graph": graph,
            "links": repr(self.network.links),
            "direct": direct,
            "deadline": f"{deadline} s, max_lag {max_lag}",
        }
        self.agree(facts, "ProcessNetwork")
        self._check_size()
        self.transports = self._open_transports(direct)
        self._sums = self.transports.channel().open()
        threading.Thread(target=_watch, args=(weakref.ref(self),), name="digrad-watch", daemon=True).start()

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.network.n

    @property
    def shares_memory_with(self) -> frozenset[int]:
        """The agents, this one included, whose packets travel through memory that both share."""
        near = (one.peers for one in self.transports.each if isinstance(one, SharedMemory))
        return frozenset().union(*near)

    @property
    def timeout(self) -> float:
        """Seconds that this agent waits for a neighbour now."""
        return self._timeout or max(PATIENCE, STEPS * self._longest_step)

    def _open_transports(self, direct: bool) -> Transports:
        """Connect to all agents: through memory on this host, over ZeroMQ otherwise; all must call."""
        keys = None
        if STORE_VARIABLE in os.environ:
            self.address = os.environ[ADDRESS_VARIABLE]
            keys = read_key(os.environ[KEY_VARIABLE]) if KEY_VARIABLE in os.environ else None
        else:
            self.address = published_address(os.environ.get(INTERFACE, "lo")) or "127.0.0.1"
        made = open_transports(
            self.agent,
            self.address,
            keys,
            lambda facts: self.exchange(facts, "ProcessNetwork"),
            direct=direct,
        )
        weakref.finalize(self, made.close)
        return made

    @contextlib.contextmanager
    def waiting_for(
        self, agents: Sequence[int], progress: Callable[[], float] | None = None, call: str | None = None
    ) -> Iterator[None]:
        """Look after a while whether those that this agent waits for are elsewhere, and fail then.

        Args:
            agents: The others, whoever must do something before this agent can go on.
            progress: Tells when bytes last moved, where that is known.
            call: What it has announced; by default nothing, because it is in a step.
        """
        self._awaited = Awaited(agents, progress, call, time.monotonic())
        try:
            yield
        finally:
            self._awaited = None

    def look_around(self) -> None:
        """Hang up if this agent has waited for long and in vain, so that its wait ends; a thread calls."""
        for look in self.watchers:
            with contextlib.suppress(dist.DistError, RuntimeError):  # the store has gone
                look()
        awaited = self._awaited
        if awaited is None or time.monotonic() - awaited.last_progress < SUSPICION:
            return
        with contextlib.suppress(dist.DistError, RuntimeError):  # the store has gone with agent 0
            if self.coordination.is_elsewhere(awaited.agents, awaited.call) and self._awaited is awaited:
                self._hang_up()

    def count_optimizer(self) -> int:
        """Return the number of an optimizer of this network, the same on every agent."""
        self._optimizers += 1
        return self._optimizers

    def note_step(self, seconds: float) -> None:
        """Take the duration of a step into account for later timeouts."""
        self._longest_step = max(self._longest_step, seconds)

    def agree(self, facts: dict[str, str | int], purpose: str) -> None:
        """Raise on every agent, within the timeout, unless all have the same facts."""
        self.coordination.agree(facts, self.timeout, purpose)

    def exchange(self, facts: dict[str, Any], purpose: str) -> list[dict[str, Any]]:
        """Return the facts of every agent, by agent; every agent must call."""
        return self.coordination.exchange(facts, self.timeout, purpose)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over all agents, a new tensor; every agent must call."""
        return self.add_up(values.clone(memory_format=torch.contiguous_format))

    def add_up(
        self, values: torch.Tensor, call: str | None = None, channel: Channel | None = None
    ) -> torch.Tensor:
        """Replace ``values``, contiguous, by the sum over all agents, and return it; every agent must call.

        Args:
            values: Of this agent.
            call: What the user has called, for those who wait elsewhere; by default it is part of a step.
            channel: That carries and counts the parts; by default that of the network.
        """
        channel = channel or self._sums
        if call is not None:
            self.coordination.announce(call)
        if values.device.type == "cpu":
            ring_sum(
                values, self.agent, self.n, channel, lambda *what: self._wait_for_part(call, channel, *what)
            )
            return values
        try:
            with self.waiting_for(range(self.n), call=call):
                all_reduce(values, self.group, self.timeout, channel)
        except RuntimeError as error:
            silent = CommunicationError(
                f"{call or 'mean'}: the sum over all agents did not complete within {self.timeout:.1f} s: an agent is "
                "dead, stopped or did not call; start all agents again."
            )
            raise self.reason_of(silent, call) from error
        return values

    def _wait_for_part(
        self, call: str | None, channel: Channel, peer: int, look: Callable[[float], Any]
    ) -> Any:
        """Return what ``look`` finds of a part of a sum, as long as bytes of a neighbour move within the timeout."""
        began = time.monotonic()
        try:
            with self.waiting_for([peer], lambda: channel.last_progress(peer), call):
                while (found := look(self.timeout / 4)) is None:
                    if time.monotonic() >= max(began, channel.last_progress(peer)) + self.timeout:
                        raise MessageLostError(f"nothing moved for {self.timeout:.1f} s")
                return found
        except MessageLostError as error:
            lost = CommunicationError(
                f"{call or 'mean'}: the sum over all agents did not pass {agents_text([peer])} ({first_line(error)}); "
                "it is dead, stopped or did not call; start all agents again."
            )
            raise self.reason_of(lost, call) from error

    def reason_of(self, error: CommunicationError, call: str | None = None) -> DigradError:
        """Return why nothing came from the others, if they have said it, else ``error``.

        Args:
            error: What this agent has noticed.
            call: What it has announced; by default nothing, because it was in a step.
        """
        found: list[DigradError | None] = []

        def ask() -> None:
            try:
                if call is None:
                    self.coordination.announce(STEP)
                found.append(self.coordination.why(call or STEP, GRACE if call else 0.0))
            except (dist.DistError, RuntimeError):
                found.append(None)  # the store has gone with agent 0

        # In a thread, because the store does not answer at all where agent 0 is stopped.
        thread = threading.Thread(target=ask, name="digrad-reason", daemon=True)
        thread.start()
        thread.join(GRACE + LINGER + 1.0)
        return next((reason for reason in found if reason is not None), error)

    def fail(self, error: DigradError) -> NoReturn:
        """Raise ``error`` here, and on every other agent in its next step or call."""
        self.coordination.fail(error)
        self._hang_up()
        self.coordination.leave_together()
        raise error

    def _hang_up(self) -> None:
        """Close the connections, so that nobody waits for the timeout; only this agent's store is still there."""
        self.transports.close()
        if "nccl" in dist.get_backend(self.group):
            self.group.abort()

    def close(self) -> None:
        """Leave the group together; every agent must call."""
        self.coordination.exchange({}, self.timeout, "ProcessNetwork.close()")
        self.transports.close()
        self.coordination.leave_together()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
            _left.append(True)

    def _check_size(self) -> None:
        size = dist.get_world_size(self.group)
        if size != self.n:
            self.coordination.leave_together()
            raise ArgumentError(
                f"`network` of ProcessNetwork has {self.n} agents, but {size} processes were started; "
                f"start {self.n}, or give a graph of {size} agents."
            )


def _bind(interface: str | None) -> None:
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


def _watch(network: weakref.ref[ProcessNetwork]) -> None:
    """Look around now and then as long as a network is there."""
    while (there := network()) is not None:
        there.look_around()
        del there
        time.sleep(LOOK)


def _as_network(network: Network | Digraph | GraphSequence | None) -> Network:
    if isinstance(network, Digraph | GraphSequence):
        return Network(network)
    if network is not None:
        check_network(network, "ProcessNetwork")
        return network
    path = os.environ.get(GRAPH_VARIABLE)
    if not path:
        raise ArgumentError(
            "`network` of ProcessNetwork is missing, and no graph file was named; pass a graph, or start with "
            "`digrad launch --graph FILE`."
        )
    return Network(graphs.read(path))


def _check_restart() -> None:
    """Refuse a restart by which torchrun would lead the agents of several machines to the addresses of the last one."""
    is_fresh = ROUND_VARIABLE in os.environ or os.environ.get(SHARED_STORE) == "False"
    if dist.is_initialized() or is_fresh or os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return
    remedy = "start with `digrad launch`, or with `torchrun --rdzv-backend digrad`"
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        raise CommunicationError(
            "torchrun has restarted the agents, but keeps one store for all attempts, where they would find the "
            f"addresses of the previous one; {remedy}."
        )
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        warnings.warn(
            "torchrun may restart the agents, but keeps one store for all attempts, so a restart would fail; "
            f"{remedy}.",
            RuntimeWarning,
            stacklevel=3,
        )


def _join(backend: str, timeout: float) -> None:
    if _left:
        raise ArgumentError(
            "a ProcessNetwork of this process was closed, and the processes cannot connect a second time; keep it open "
            "for the whole run: several optimizers may use it."
        )
    needed = ["RANK", "WORLD_SIZE"]
    if STORE_VARIABLE not in os.environ:
        needed += ["MASTER_ADDR", "MASTER_PORT"]
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise ArgumentError(
            f"ProcessNetwork needs {', '.join(missing)} in the environment; start the script with "
            "`digrad launch --agents N SCRIPT` or torchrun."
        )
    rank, size, joining = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), None
    try:
        store = store_from_environment(timeout)
        if store is not None:
            joining = Coordination(store, rank, size, "joining")
            joining.post(_HERE, {})
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
        )
    except (dist.DistError, RuntimeError, ValueError) as error:
        missing = _missing(joining)
        reason = f"missing: {agents_text(missing)}" if missing else first_line(error)
        raise CommunicationError(
            f"the {size} agents did not all join within {timeout:.0f} s ({reason}); look at the logs of the missing "
            "ones, and start all agents again."
        ) from error


def _missing(joining: Coordination | None) -> list[int]:
    """Return the agents that have not come together, as far as that is known."""
    with contextlib.suppress(dist.DistError, RuntimeError):  # the store has gone with agent 0
        if joining is not None:
            missing = joining.missing(_HERE)
            joining.leave_together()
            return missing
    return []


def _coordination(group: dist.ProcessGroup, agent: int) -> Coordination:
    ranks = dist.get_process_group_ranks(group)
    name = hashlib.sha256(repr(ranks).encode()).hexdigest()[:12]
    _instances[name] = _instances.get(name, 0) + 1
    # The store of the group has no public accessor; a second one would need a port of its own.
    store = dist.distributed_c10d._get_default_store()
    return Coordination(store, agent, len(ranks), f"{name}/{_instances[name]}")
