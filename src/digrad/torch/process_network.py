"""A network whose agents are processes, connected by torch.distributed."""

import contextlib
import hashlib
import os
import secrets
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist

import digrad
from digrad import checks, graphs
from digrad.core.validation import check_network
from digrad.errors import ArgumentError, CommunicationError, DigradError
from digrad.graphs import Digraph, GraphSequence
from digrad.network import AnyNetwork, Network
from digrad.torch import security
from digrad.torch.addresses import published_address
from digrad.torch.agent_links import AgentLinks, Place, ring_sum
from digrad.torch.curve import KEY_VARIABLE
from digrad.torch.exchange import TAGS, Round
from digrad.torch.handshake import GRACE, LINGER, Handshake
from digrad.torch.launch import ADDRESS_VARIABLE, GRAPH_VARIABLE, ROUND_VARIABLE, STORE_VARIABLE
from digrad.torch.launch.store import store_from_environment
from digrad.torch.launch.worker import die_with_parent, record_uncaught
from digrad.torch.log_records import note_agent
from digrad.torch.reasons import agents_text, first_line
from digrad.torch.route import Route
from digrad.torch.same_host import SameHost

SHARED_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # what torchrun tells the agents it has done
PATIENCE = 300.0  # seconds that an agent waits for another one,
STEPS = 5  # or so many step times if that is longer
SUSPICION = 10.0  # seconds of waiting after which to look where the other one is,
LOOK = 2.0  # and between two looks
STEP = "DecentralizedOptimizer.step()"
_BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")
_HERE = "here"  # what agents say before they wait for one another
_Links = TypeVar("_Links", AgentLinks, SameHost)

_left: list[bool] = []  # whether this process has closed the group that it joined
_instances: dict[str, int] = {}  # networks made on each group so far, the same on every agent


class Awaited(NamedTuple):
    """Whom an agent waits for.

    Args:
        agents: The others.
        work: What it waits for.
        call: What it has announced; None in a step.
        since: When it began.
    """

    agents: Sequence[int]
    work: Any
    call: str | None
    since: float

    @property
    def last_progress(self) -> float:
        """When bytes last moved, as far as that is known."""
        return max(self.since, getattr(self.work, "last_progress", self.since))


class ProcessNetwork:
    """A digraph of processes: the agent's number is the rank in the process group.

    Joins the processes that ``digrad launch`` or ``torchrun`` started, unless the group exists already, and
    makes sure that all of them mean the same graph, weights and version. Every agent must construct it.

    Args:
        network: A :class:`~digrad.network.Network`, a :class:`~digrad.network.NetworkSequence`, or a digraph,
            constant or not; by default the graph file named by ``digrad launch``.
        group: A process group whose ranks are the agents; by default the world. For agents that are DDP groups
            pass the group of equal data-parallel ranks.
        timeout: Seconds to wait for a neighbour of which nothing moves; by default 300, or five times the longest step
            so far if that is longer. One that waits elsewhere, in a call that this agent does not make, is an error
            after 10 seconds.
        backend: ``gloo``, or ``nccl`` for CUDA.
        interface: The network interface that gloo may use, for example ``lo`` or ``wg0``.
        deadline: Seconds after which an agent goes on without the messages of its neighbours, counted from the end of
            its own last step: late is tolerated (gloo only). None waits for all of them.
        max_lag: Steps that a neighbour may be behind before it is waited for nevertheless, not counting those at which
            it sends nothing. None is any number: the minimum is the same, but a model that is trained for a fixed
            number of steps may then forget the data of an agent that was stopped.
        direct: Let agents of the same host and user write large messages into one another's memory where the
            system allows it, which is several times faster than loopback.

    Raises:
        ArgumentError: The number of processes is not the number of agents, or a setting is impossible.
        CommunicationError: The others did not come, or disagree; raised on every agent.
    """

    def __init__(
        self,
        network: AnyNetwork | Digraph | GraphSequence | None = None,
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
        self._direct, self._optimizers = direct, 0
        self.same_host: SameHost | None = None
        self._closing: list[Callable[[], None]] = []
        self._under_way: list[tuple[Round, weakref.ref[Any]]] = []
        self._awaited: Awaited | None = None
        self.watchers: list[Callable[[], None]] = []  # called every two seconds, in a thread
        security.bind(interface)
        die_with_parent()
        record_uncaught()
        _check_restart()
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            _join(backend, timeout or PATIENCE)
        self.group: dist.ProcessGroup = group or dist.group.WORLD  # pyright: ignore[reportAttributeAccessIssue]
        self.agent = dist.get_rank(self.group)
        note_agent(self.agent)
        self.handshake = _handshake(self.group, self.agent)
        self.handshake.hang_up = self._hang_up
        graph = f"{self.n} agents, {self.network.union.n_arcs} arcs, {self.network.content_hash[:16]}"
        facts = {
            "version": digrad.__version__,
            "graph": graph,
            "links": repr(self.network.links),
            "direct": direct,
            "deadline": f"{deadline} s, max_lag {max_lag}",
        }
        self.agree(facts, "ProcessNetwork")
        self._check_size()
        self.links = self._open_links(backend)
        threading.Thread(target=_watch, args=(weakref.ref(self),), name="digrad-watch", daemon=True).start()

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.network.n

    @property
    def timeout(self) -> float:
        """Seconds that this agent waits for a neighbour now."""
        return self._timeout or max(PATIENCE, STEPS * self._longest_step)

    def place(self) -> Place:
        """Return where this agent listens for others, and the secret by which they know one another; all must call."""
        drawn = self.exchange({"secret": secrets.token_hex(32)}, "ProcessNetwork")[0]["secret"]
        if STORE_VARIABLE in os.environ:
            machine, address = int(os.environ["GROUP_RANK"]), os.environ[ADDRESS_VARIABLE]
            return Place(machine, address, bytes.fromhex(drawn), sealed=KEY_VARIABLE in os.environ)
        interface = os.environ.get(security.INTERFACE, "lo")
        return Place(
            self.agent, published_address(interface) or "127.0.0.1", bytes.fromhex(drawn), sealed=False
        )

    def _open_links(self, backend: str) -> AgentLinks | None:
        """Return the links to agents of other machines, if ``digrad launch`` has started several."""
        if STORE_VARIABLE not in os.environ or "gloo" not in backend:
            return None
        return self.keep(
            AgentLinks(
                self.agent,
                self.n,
                self.place(),
                lambda facts: self.exchange(facts, "ProcessNetwork"),
                self.timeout,
            )
        )

    def keep(self, links: _Links) -> _Links:
        """Close these links with the others of this agent."""
        weakref.finalize(self, links.close)
        self._closing.append(links.close)
        return links

    def open_memory(self, letters: Iterable[str]) -> None:
        """Connect the agents of each host so that large messages go through memory they share; all must call.

        Args:
            letters: The matrices over whose arcs the messages travel.
        """
        if self._direct and self.same_host is None:
            turns = [self.network.at(k) for k in range(self.network.period or 0)]
            used = [getattr(one, letter).support for one in turns for letter in letters]
            arcs = sorted({arc for graph in (self.network.union, *used) for arc in graph.edges})
            self.same_host = self.keep(
                SameHost(
                    self.agent,
                    arcs,
                    lambda facts: self.exchange(facts, "same host"),
                    self.timeout,
                )
            )

    def hold(self, sent: Round, owner: Any) -> None:
        """Keep messages under way alive, with their memory, even if ``owner`` is dropped before they have arrived."""
        self._under_way = [entry for entry in self._under_way if not entry[0].is_finished]
        self._under_way.append((sent, weakref.ref(owner)))

    def settle_abandoned(self) -> None:
        """Wait for messages whose owner was dropped without ``close``: the next one must not meet them."""
        for sent, owner in self._under_way:
            if owner() is None:
                sent.finish(self.timeout)

    @contextlib.contextmanager
    def waiting_for(self, agents: Sequence[int], work: Any = None, call: str | None = None) -> Iterator[None]:
        """Look after a while whether those that this agent waits for are elsewhere, and fail then.

        Args:
            agents: The others, whoever must do something before this agent can go on.
            work: What it waits for, which may know when bytes last moved.
            call: What it has announced; by default nothing, because it is in a step.
        """
        self._awaited = Awaited(agents, work, call, time.monotonic())
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
            if self.handshake.is_elsewhere(awaited.agents, awaited.call) and self._awaited is awaited:
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
        self.handshake.agree(facts, self.timeout, purpose)

    def exchange(self, facts: dict[str, Any], purpose: str) -> list[dict[str, Any]]:
        """Return the facts of every agent, by agent; every agent must call."""
        return self.handshake.exchange(facts, self.timeout, purpose)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over all agents, a new tensor; every agent must call."""
        return self.add_up(values.clone(memory_format=torch.contiguous_format))

    def add_up(self, values: torch.Tensor, call: str | None = None) -> torch.Tensor:
        """Replace ``values``, contiguous, by the sum over all agents, and return it; every agent must call.

        Args:
            values: Of this agent.
            call: What the user has called, for those who wait elsewhere; by default it is part of a step.
        """
        if call is not None:
            self.handshake.announce(call)
        if self.links is not None:
            self._add_up_over_links(values, call)
            return values
        options = dist.AllreduceOptions()
        # Its own timeout: under that of the group the process could not end before a minute has passed. Waiting
        # a little longer than the operation lasts lets it end by itself.
        options.timeout = timedelta(seconds=self.timeout)
        try:
            with self.waiting_for(range(self.n), call=call):
                self.group.allreduce([values], options).wait(timedelta(seconds=self.timeout + GRACE))
        except RuntimeError as error:
            silent = CommunicationError(
                f"{call or 'mean'}: the sum over all agents did not complete within {self.timeout:.1f} s: an agent is "
                "dead, stopped or did not call; start all agents again."
            )
            raise self.reason_of(silent, call) from error
        return values

    def _add_up_over_links(self, values: torch.Tensor, call: str | None) -> None:
        assert self.links is not None
        route = Route(self.group, [self.links])

        def finish(works: Iterable[tuple[int, Any]]) -> None:
            deadline = time.monotonic() + self.timeout
            for peer, work in works:
                try:
                    with self.waiting_for([peer], work, call):
                        is_there = route.wait(work, deadline, self.timeout)
                    if is_there:
                        continue
                    reason = f"nothing moved for {self.timeout:.1f} s"
                except RuntimeError as error:
                    reason = first_line(error)
                lost = CommunicationError(
                    f"{call or 'mean'}: the sum over all agents did not pass {agents_text([peer])} ({reason}); "
                    "it is dead, stopped or did not call; start all agents again."
                )
                raise self.reason_of(lost, call)

        ring_sum(values, self.agent, self.n, self.links, finish)

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
                    self.handshake.announce(STEP)
                found.append(self.handshake.why(call or STEP, GRACE if call else 0.0))
            except (dist.DistError, RuntimeError):
                found.append(None)  # the store has gone with agent 0

        # In a thread, because the store does not answer at all where agent 0 is stopped.
        thread = threading.Thread(target=ask, name="digrad-reason", daemon=True)
        thread.start()
        thread.join(GRACE + LINGER + 1.0)
        return next((reason for reason in found if reason is not None), error)

    def fail(self, error: DigradError) -> NoReturn:
        """Raise ``error`` here, and on every other agent in its next step or call."""
        self.handshake.fail(error)
        self._hang_up()
        self.handshake.leave_together()
        raise error

    def _hang_up(self) -> None:
        """Close the connections, so that nobody waits for the timeout; only this agent's store is still there."""
        for close in self._closing:
            close()
        if "gloo" not in dist.get_backend(self.group):
            self.group.abort()
            return
        # gloo closes all connections of a group after a receive that has waited too long, and only then. A neighbour
        # that has hung up already cannot be waited for, hence all of them are tried.
        for peer in (agent for agent in range(self.n) if agent != self.agent):
            with contextlib.suppress(RuntimeError):
                late: Any = dist.irecv(torch.empty(1), group=self.group, group_src=peer, tag=TAGS)
                late.wait(timedelta(milliseconds=1))

    def close(self) -> None:
        """Leave the group together; every agent must call."""
        self.handshake.exchange({}, self.timeout, "ProcessNetwork.close()")
        for close in self._closing:
            close()
        self.handshake.leave_together()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
            _left.append(True)

    def _check_size(self) -> None:
        size = dist.get_world_size(self.group)
        if size != self.n:
            self.handshake.leave_together()
            raise ArgumentError(
                f"`network` of ProcessNetwork has {self.n} agents, but {size} processes were started; "
                f"start {self.n}, or give a graph of {size} agents."
            )


def _watch(network: weakref.ref[ProcessNetwork]) -> None:
    """Look around now and then as long as a network is there."""
    while (there := network()) is not None:
        there.look_around()
        del there
        time.sleep(LOOK)


def _as_network(network: AnyNetwork | Digraph | GraphSequence | None) -> AnyNetwork:
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
            "a ProcessNetwork of this process was closed, and the processes cannot meet a second time; keep it open "
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
    rank, size, meeting = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), None
    try:
        store = store_from_environment(timeout)
        if store is not None:
            meeting = Handshake(store, rank, size, "joining")
            meeting.post(_HERE, {})
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
        )
    except (dist.DistError, RuntimeError, ValueError) as error:
        missing = _missing(meeting)
        reason = f"missing: {agents_text(missing)}" if missing else first_line(error)
        raise CommunicationError(
            f"the {size} agents did not all come within {timeout:.0f} s ({reason}); look at the logs of the missing "
            "ones, and start all agents again."
        ) from error


def _missing(meeting: Handshake | None) -> list[int]:
    """Return the agents that have not come to a meeting, as far as that is known."""
    with contextlib.suppress(dist.DistError, RuntimeError):  # the store has gone with agent 0
        if meeting is not None:
            missing = meeting.missing(_HERE)
            meeting.leave_together()
            return missing
    return []


def _handshake(group: dist.ProcessGroup, agent: int) -> Handshake:
    ranks = dist.get_process_group_ranks(group)
    name = hashlib.sha256(repr(ranks).encode()).hexdigest()[:12]
    _instances[name] = _instances.get(name, 0) + 1
    # The store of the group has no public accessor; a second one would need a port of its own.
    store = dist.distributed_c10d._get_default_store()
    return Handshake(store, agent, len(ranks), f"{name}/{_instances[name]}")
