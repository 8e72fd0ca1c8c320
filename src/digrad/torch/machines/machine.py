"""One machine of several: it starts and ends its agents as the supervisor says, and answers for the store."""

import contextlib
import json
import math
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import digrad
from digrad.errors import ArgumentError
from digrad.torch.agent_output import AgentOutput
from digrad.torch.failure_records import FAILURES_VARIABLE, read_failures, unrecorded_failure
from digrad.torch.failure_story import say
from digrad.torch.launch_folder import GRACE, ask_to_end
from digrad.torch.machines.channel import BEAT, GREETING, Channel, Message, connections
from digrad.torch.machines.meeting import MEETING_VARIABLE
from digrad.torch.machines.sealed import StrangerError
from digrad.torch.tied import PARENT_VARIABLE

_PERIOD = 0.05  # seconds between two looks at the agents
_MOMENTS = 2.0  # seconds that agents get to end by themselves, once one has failed and once they are told to
_RETRY = 0.5  # seconds between two attempts to reach the endpoint
_LOST: Message = {"lost": None}  # what the reader leaves when the connection ends


@dataclass(frozen=True)
class Plan:
    """What one machine contributes.

    Args:
        host: Of the endpoint.
        port: Of the endpoint.
        is_taken: Whether a program of this machine listens there already, which may not be a launch.
        secret: That all machines share; None trusts whoever is there.
        nodes: Machines.
        node_rank: The number of this one; None takes a free one.
        agents: Processes here.
        graph: A hash of the graph that launch was given, if it was.
        max_restarts: How often to start again after a failure.
        rejoin_timeout: Seconds to wait for the endpoint.
        address: On which agents listen; None takes the one from which the endpoint is reached.
        command: Of an agent.
        environment: Of an agent.
    """

    host: str
    port: int
    is_taken: bool
    secret: bytes | None
    nodes: int
    node_rank: int | None
    agents: int
    graph: str | None
    max_restarts: int
    rejoin_timeout: float
    address: str | None
    command: Sequence[str]
    environment: Mapping[str, str]


class Machine:
    """The agents of this machine, attempt by attempt.

    Args:
        plan: What to run.
        folder: Private.
        output: Where agents are heard.
        received: Signals that ask this process to end.
    """

    def __init__(self, plan: Plan, folder: Path, output: AgentOutput, received: list[int]) -> None:
        self._plan, self._folder, self._output, self._received = plan, folder, output, received
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._order: Message = {"attempt": -1}  # of the present attempt
        self._rank: int | None = plan.node_rank
        self._channel: Channel | None = None
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._asked: dict[int, Future[Message]] = {}
        self._count, self._lock = 0, threading.Lock()
        self._failed_at: float | None = None
        self._next_beat = 0.0
        self._left_at: float | None = None  # when this machine was told to end
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "meeting"))
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    def run(self) -> int:
        """Take part until the run is over; return the exit code.

        Raises:
            ArgumentError: The endpoint cannot be used, or refuses this machine.
        """
        try:
            self._join()
            while True:
                try:
                    message = self._inbox.get(timeout=_PERIOD)
                except queue.Empty:
                    message = {}
                code = self._handle(message)
                if code is not None:
                    return code
                self._look_after_agents()
                self._beat()
        finally:
            self._end_agents()
            if self._channel is not None:
                self._channel.close()
            self._listener.close()

    def _join(self) -> None:
        """Reach the supervisor, however long it takes within the limit."""
        plan, began, told = self._plan, time.monotonic(), False
        reason = ""
        while time.monotonic() - began < plan.rejoin_timeout and not self._received:
            try:
                self._channel = self._greet()
            except OSError as error:
                reason = str(error)
            else:
                threading.Thread(target=self._read, args=(self._channel,), daemon=True).start()
                return
            if not told and time.monotonic() - began > GREETING:
                told = True
                say(f"waiting for the machine with the endpoint {plan.host}:{plan.port} ({reason})")
            time.sleep(_RETRY)
        if not self._received:
            raise ArgumentError(
                f"`endpoint` of launch is {plan.host}:{plan.port}, where nobody answered within "
                f"{plan.rejoin_timeout:.0f} s ({reason}); start the machine with this address, or look at firewalls."
            )

    def _greet(self) -> Channel:
        plan = self._plan
        connection = socket.create_connection((plan.host, plan.port), timeout=GREETING)
        try:
            channel = Channel.over(connection, plan.secret, is_first=True)
        except StrangerError as error:
            raise self._unusable(_explained(str(error))) from error
        except TimeoutError as error:
            if plan.is_taken:
                raise self._unusable(_explained("it does not speak as digrad does")) from error
            raise
        channel.send(
            {
                "version": digrad.__version__,
                "nodes": plan.nodes,
                "agents": plan.agents,
                "graph": plan.graph,
                "max_restarts": plan.max_restarts,
                "node_rank": self._rank,
                "attempt": self._order["attempt"],
            }
        )
        answer = channel.receive()
        if "refused" in answer:
            raise ArgumentError(
                f"the machine with the endpoint {plan.host}:{plan.port} refuses: {answer['refused']}."
            )
        self._rank = answer["welcome"]
        return channel

    def _unusable(self, reason: str) -> ArgumentError:
        return ArgumentError(f"`endpoint` of launch is '{self._plan.host}:{self._plan.port}', but {reason}.")

    def _read(self, channel: Channel) -> None:
        with contextlib.suppress(OSError, StrangerError, ValueError):
            while True:
                message = channel.receive()
                if "answer" in message:
                    with self._lock:
                        future = self._asked.pop(message["answer"], None)
                    if future is not None:
                        future.set_result(message["content"])
                elif "beat" not in message:
                    self._inbox.put(message)
        with self._lock:
            asked, self._asked = self._asked, {}
        for future in asked.values():
            future.set_result({"ok": False, "reason": "the machine with the endpoint has gone"})
        self._inbox.put(_LOST)

    def _handle(self, message: Message) -> int | None:
        """Do what the supervisor says; return the exit code if the run is over."""
        if "start" in message:
            self._tell(message["told"])
            self._start(message["start"])
        elif "stop" in message:
            self._end_agents()
        elif "say" in message:
            say(message["say"])
        elif "end" in message:
            self._end_agents()
            self._tell(message["told"])
            return message["end"]
        elif message is _LOST:
            self._end_agents()
            say(f"lost the machine with the endpoint {self._plan.host}:{self._plan.port}")
            self._join()
        elif "ask" in message:
            ask_to_end(self._folder, self._plan.agents)
        if self._received and self._left_at is None:
            is_gentle = self._received[0] == signal.SIGTERM and ask_to_end(self._folder, self._plan.agents)
            self._left_at = time.monotonic() - (0.0 if is_gentle else math.inf)
            self._send({"leaving": is_gentle})
        is_over = self._left_at is not None and time.monotonic() - self._left_at > GRACE
        if self._received and (is_over or len(self._received) > 1):
            return 128 + self._received[0]
        return None

    def _start(self, order: Message) -> None:
        self._order, self._failed_at = order, None
        plan, first = self._plan, order["first"]
        for local in range(plan.agents):
            variables = {
                "RANK": first + local,
                "LOCAL_RANK": local,
                "WORLD_SIZE": order["world"],
                "LOCAL_WORLD_SIZE": plan.agents,
                "GROUP_RANK": self._rank,
                "TORCHELASTIC_RESTART_COUNT": order["attempt"],
                "TORCHELASTIC_USE_AGENT_STORE": False,
                FAILURES_VARIABLE: self._folder,
                MEETING_VARIABLE: self._folder / "meeting",
                PARENT_VARIABLE: os.getpid(),
            }
            environment = {**plan.environment, **{name: str(value) for name, value in variables.items()}}
            # In a session of its own an agent gets no Ctrl-C; it hears of it from here.
            self._agents[first + local] = subprocess.Popen(
                plan.command, env=environment, start_new_session=True
            )

    def _look_after_agents(self) -> None:
        """Tell the supervisor once all agents here have ended; if one has failed the others get little time."""
        if not self._agents:
            return
        codes = {rank: process.poll() for rank, process in self._agents.items()}
        if any(codes.values()) and self._failed_at is None:
            self._failed_at = time.monotonic()
        is_late = self._failed_at is not None and time.monotonic() - self._failed_at > _MOMENTS
        if is_late or all(code is not None for code in codes.values()):
            self._end_agents(codes)

    def _end_agents(self, codes: Mapping[int, int | None] | None = None) -> None:
        """End all agents, and report what became of them; ``codes`` are of those that ended by themselves."""
        if not self._agents:
            return
        codes = codes or {rank: process.poll() for rank, process in self._agents.items()}
        for send in (subprocess.Popen.terminate, subprocess.Popen.kill):
            for process in self._agents.values():
                send(process)
            deadline = time.monotonic() + _MOMENTS
            while (
                any(process.poll() is None for process in self._agents.values())
                and time.monotonic() < deadline
            ):
                time.sleep(0.01)
        for process in self._agents.values():
            process.wait()
        self._agents = {}
        attempt, now = self._order["attempt"], time.monotonic()
        failures = [failure for failure in read_failures(self._folder) if failure["attempt"] == attempt]
        known = {failure["agent"] for failure in failures}
        failures += [
            unrecorded_failure(rank, code, attempt)
            for rank, code in codes.items()
            if code and rank not in known
        ]
        told = [{**failure, "age": now - failure["time"], "traceback": ""} for failure in failures]
        succeeded = all(code == 0 for code in codes.values())
        self._send({"ended": {"attempt": attempt, "succeeded": succeeded, "failures": told}})

    def _tell(self, told: Message) -> None:
        """Show what the agents here have left of the attempt that has ended, and what it is put down to."""
        for failure in read_failures(self._folder):
            if failure["attempt"] != self._order["attempt"] or not told["line"]:
                continue
            is_cause = failure["agent"] == told["cause"]
            if failure["has_left"]:
                continue  # the line says it, or there is nothing to say
            self._output.show(
                failure["agent"], failure["traceback"] if is_cause else f"{failure['reason']}\n"
            )
        if told["line"]:
            say(told["line"])

    def _beat(self) -> None:
        if time.monotonic() > self._next_beat:
            self._next_beat = time.monotonic() + BEAT
            self._send({"beat": None})

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # the reader learns it too
                self._channel.send(message)

    def _accept(self) -> None:
        for connection, _ in connections(self._listener):
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Pass the requests of an agent on, and the answers back."""
        # Closing the file writes what is left, which fails too if the agent has gone.
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rwb") as file:
            for line in file:
                request = json.loads(line)
                answer = (
                    {"ok": True, "facts": self._facts()} if request["op"] == "facts" else self._ask(request)
                )
                file.write(json.dumps(answer).encode() + b"\n")
                file.flush()

    def _facts(self) -> Message:
        channel = self._channel
        here = "" if channel is None else channel.here
        return {
            "machine": self._rank,
            "address": self._plan.address or here,
            "secret": self._order.get("secret"),
            "sealed": self._order.get("sealed"),
        }

    def _ask(self, request: Message) -> Message:
        future: Future[Message] = Future()
        with self._lock:
            self._count += 1
            number = self._count
            self._asked[number] = future
        try:
            assert self._channel is not None
            self._channel.send({"store": number, "attempt": self._order["attempt"], "request": request})
        except OSError as error:
            with self._lock:
                self._asked.pop(number, None)
            return {"ok": False, "reason": f"the machine with the endpoint has gone ({error})"}
        return future.result()


def _explained(reason: str) -> str:
    advice = {
        "it has no key": "the machine there has no key: give all machines the same --key-file",
        "it asks for a key": "the machine there asks for a key: give this one its --key-file",
        "it does not speak as digrad does": "another program listens on this port; choose another",
    }
    return advice.get(reason, f"{reason}: give all machines the same --key-file, or choose another port")
