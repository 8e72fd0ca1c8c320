"""Rounds of the rendezvous, who takes part and what is reported: no process, no socket, and a clock of our own."""

from typing import Any

import pytest

from digrad.torch.launch.failures import CONSEQUENCE, FINAL, LEFT, Failure
from digrad.torch.launch.rendezvous_endpoint import ANSWER_TIMEOUT
from digrad.torch.launch.rendezvous_rounds import FRESH, TAKEOVER, Rounds

AGAIN = "; all agents have been started again"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """A machine that says what a test wants it to say."""

    def __init__(self, rounds: Rounds, name: str, **facts: Any) -> None:
        self.rounds, self.name, self.after, self.failures = rounds, name, -1, []
        self.rank = facts.pop("rank", None)
        self.facts = {"version": "1", "nodes": 2, "graph": None, "max_restarts": 1, **facts}
        self.told = ""

    def join(self, *failures: dict[str, Any]) -> dict[str, Any]:
        answer = self.rounds.answer(
            {"op": "join", "name": self.name, "address": f"at {self.name}", "facts": self.facts, "rank": self.rank,
             "last": None, "after": self.after, "failures": list(failures)}
        )  # fmt: skip
        if "round" in answer:
            self.after, self.told = answer["round"], answer["told"]["line"]
        return answer

    def is_over(self) -> bool:
        return self.rounds.answer({"op": "heartbeat", "name": self.name, "round": self.after})["over"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rounds(clock: Clock) -> Rounds:
    return Rounds(2, clock)


@pytest.fixture
def two(rounds: Rounds) -> list[Machine]:
    """Two machines in the first round."""
    machines = [Machine(rounds, "a"), Machine(rounds, "b")]
    together(*machines)
    return machines


def together(*machines: Machine) -> list[dict[str, Any]]:
    """Let machines join one after the other, and keep the answer."""
    answers = [machine.join() for machine in machines]
    return [one if "round" in one else machine.join() for one, machine in zip(answers, machines, strict=True)]


def failure(reason: str, **facts: Any) -> dict[str, Any]:
    return vars(Failure(reason, **{"age": 0.1, "step": 3, **facts}))


LOST = failure("CommunicationError: lost", kind=CONSEQUENCE)


def test_machines_are_numbered_as_they_wish_or_as_they_come(rounds: Rounds) -> None:
    one, other = Machine(rounds, "a", rank=1), Machine(rounds, "b")
    assert one.join() == {"missing": ["machine 0"]}
    assert [answer["rank"] for answer in together(one, other)] == [1, 0]
    assert (one.after, other.after) == (0, 0)
    assert not one.is_over()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"nodes": 3}, "it was started for 3 machines, but the one with the endpoint for 2"),
        ({"version": "2"}, "version is 2 here, but 1 elsewhere"),
        ({"rank": 0}, "machine 0 is here already (at a); choose another node rank"),
        ({"rank": 7}, "its number is 7, but there are 2 machines"),
        ({}, "all 2 machines are here already"),
    ],
)
def test_machine_that_does_not_fit_is_told_why_and_disturbs_nobody(
    facts: dict[str, Any], reason: str, two: list[Machine], rounds: Rounds, clock: Clock
) -> None:
    other = Machine(rounds, "c", **facts)
    other.join()
    clock.now += 1.0
    assert not any(machine.is_over() for machine in two)  # heartbeats
    assert other.join() == {"refused": reason}
    assert not any(machine.is_over() for machine in two)


@pytest.mark.parametrize("rank", [1, None])
def test_machine_that_gives_no_sign_of_life_makes_room_for_the_one_that_comes_back(
    rank: int | None, two: list[Machine], rounds: Rounds, clock: Clock
) -> None:
    """One that has lost its power does not say that it leaves."""
    again = Machine(rounds, "c", rank=rank)
    clock.now += 1.0
    assert again.join() == {"missing": []}
    clock.now += TAKEOVER
    assert not two[0].is_over()  # and the other one says nothing
    assert again.join() == {"missing": ["machine 0 (at a)"]}
    assert two[0].is_over()
    together(two[0], again)
    assert two[0].told == again.told == f"machine 1 (at b) was lost{AGAIN}"
    assert (two[0].after, again.after) == (1, 1)


def test_silent_machine_is_lost_and_may_come_back(two: list[Machine], clock: Clock) -> None:
    clock.now += ANSWER_TIMEOUT - 1
    assert not two[0].is_over()
    clock.now += 2
    assert two[0].is_over()
    assert two[0].join() == {"missing": ["machine 1 (at b)"]}
    assert two[1].is_over()
    together(*two)
    assert [machine.after for machine in two] == [1, 1]


def test_machine_that_dies_while_it_waits_does_not_count(rounds: Rounds, clock: Clock) -> None:
    Machine(rounds, "a").join()
    clock.now += FRESH + 1
    assert Machine(rounds, "b").join() == {"missing": ["machine 0 (at a)"]}


def test_failure_anywhere_starts_all_again_and_the_first_cause_is_told(two: list[Machine]) -> None:
    two[1].join(failure("KeyError: 'x'.", agent=1))
    assert two[0].is_over()
    two[0].join(LOST)
    together(*two)
    assert [machine.told for machine in two] == [f"agent 1 failed: KeyError: 'x'{AGAIN}"] * 2
    two[1].join(failure("OSError: full", agent=1))
    two[0].join(LOST)
    expected = {"line": "agent 1 failed: OSError: full", "code": 1, "cause": 1}  # no restart is left
    assert [machine.join() for machine in two] == [{"closed": expected}] * 2


def test_wrong_setting_and_repeated_failure_end_the_run(rounds: Rounds, two: list[Machine]) -> None:
    marked = failure("KeyError", mark="[1]", age=0.2)
    two[0].join(marked)
    two[1].join(LOST)
    together(*two)
    two[0].join(marked)
    two[1].join(LOST)
    line = "agent 0 failed: KeyError; an earlier attempt failed in the same way at step 3, so it is not tried again"
    assert two[0].join()["closed"]["line"] == line
    other = Rounds(1)
    alone = Machine(other, "a", nodes=1)
    alone.join()
    alone.join(failure("ArgumentError: bad", kind=FINAL))
    assert alone.join()["closed"]["code"] == 2


def test_agent_that_has_ended_well_is_the_cause_only_where_others_failed_for_want_of_it(
    two: list[Machine],
) -> None:
    left = failure("it ended with exit code 0", kind=LEFT, mark="[left]")
    two[0].join(left, failure("OSError: full", agent=1))
    two[1].join(LOST)
    together(*two)
    assert two[0].told == f"agent 1 failed: OSError: full{AGAIN}"
    alone = Machine(Rounds(1), "a", nodes=1)
    alone.join()
    for line in (AGAIN, "; an earlier attempt failed in the same way at step 3, so it is not tried again"):
        answer = alone.join(left, {**LOST, "agent": 1})
        told = answer["closed"]["line"] if "closed" in answer else alone.told
        assert told == f"agent 0 failed: it ended with exit code 0{line}"


def test_agents_of_one_machine_may_fail_after_a_long_round(clock: Clock) -> None:
    alone = Machine(Rounds(1, clock), "a", nodes=1, max_restarts=1)
    alone.join()
    for attempt in range(2):
        clock.now += 2 * ANSWER_TIMEOUT  # a machine that is alone sends no heartbeats
        answer = alone.join(failure("ValueError: bad", mark=None))
        assert "agent 0 failed: ValueError: bad" in (alone.told if attempt == 0 else answer["closed"]["line"])
    assert answer["closed"]["code"] == 1


def test_store_of_a_round_is_shared_and_forgotten_with_it(two: list[Machine], rounds: Rounds) -> None:
    rounds.answer({"id": 1, "op": "set", "key": "a", "value": "Yg==", "round": 0})
    check = {"id": 2, "op": "check", "keys": ["a"]}
    assert rounds.answer({**check, "round": 0}) == {"found": True}
    assert rounds.answer({**check, "round": 7}) == {"over": True}
    together(*two)
    assert two[0].after == 1
    assert rounds.answer({**check, "round": 0}) == {"over": True}
    assert rounds.answer({**check, "round": 1}) == {"found": False}


def test_rounds_go_on_after_the_machine_with_the_endpoint_was_restarted(two: list[Machine]) -> None:
    two[0].rounds = two[1].rounds = new = Rounds(2, Clock())
    assert two[0].is_over()
    assert new.answer({"id": 1, "op": "check", "keys": [], "round": 0}) == {"over": True}
    together(*two)
    assert [machine.after for machine in two] == [1, 1]
