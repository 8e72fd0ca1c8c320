"""What XLA calls: threads that share the steps of one call, those of XLA's own pool, which tasks of ours join.

The work is a sequence of phases, two for each step, and every phase is cut into blocks of agents. Whoever is free draws
the next ticket, one for each block of each phase, and waits until the phase before is done by all. A thread that never
gets to run draws no ticket, so nobody waits for it. What is computed does not depend on who computes it.

What is done for a ticket is a compiled function of its own, known here by its address: Numba would otherwise optimise
all of it again for each function that calls it.
"""

import numba

from digrad.simulation.kernels.frame import (
    is_only_asked,
    length,
    operand,
    pool_threads,
    put_word,
    result,
    schedule,
    word,
)
from digrad.simulation.kernels.memory_access import (
    PLAIN,
    add_atomically,
    allocate,
    call,
    let_others_run,
    numbers,
    release,
)

# The first operands of every function: [4] addresses of work and task, threads, agents of a block; [1] the iteration
# of the chunk; [1] the number of steps; the state.
SETUP, BEGIN, COUNT, STATE = range(4)
# The words of a team, a cache line each, as all threads write to them.
FRAME, TICKETS, DONE, ACTIVE, CLOSED, USERS, ENDED, PHASES, BLOCKS, WORK, ROOM, SIZE = (
    64 * i for i in range(12)
)


@numba.njit(**PLAIN)
def steps_to_do(frame):
    """Return the number of steps of a call."""
    return word(operand(frame, COUNT))


@numba.njit(**PLAIN)
def end_after(team, step):
    """Let a step be the last: all of its own blocks are still done, and no later one."""
    put_word(team + ENDED, step + 1)


@numba.njit(**PLAIN)
def _is_over(team, phase):
    return 0 < add_atomically(team + ENDED, 0) <= phase // 2


@numba.njit(**PLAIN)
def _take_part(team):
    blocks = word(team + BLOCKS)
    tickets = blocks * word(team + PHASES)
    while True:
        ticket = add_atomically(team + TICKETS, 1)
        if ticket >= tickets:
            return
        phase = ticket // blocks
        while add_atomically(team + DONE, 0) < phase * blocks and not _is_over(team, phase):
            let_others_run(0)
        if _is_over(team, phase):
            return
        call(word(team + WORK), team, ticket)
        add_atomically(team + DONE, 1)


@numba.njit(**PLAIN)
def _leave(team):
    """Free the team's memory with the last one who knows its address."""
    if add_atomically(team + USERS, -1) == 1:
        release(team)


@numba.njit(**PLAIN)
def _assemble(frame, phases, blocks):
    """Return a team, and let threads of the pool join it."""
    setup, team = numbers(operand(frame, SETUP), numba.int64, 4), allocate(SIZE)
    for place in range(0, SIZE, 8):
        put_word(team + place, 0)
    put_word(team + FRAME, frame)
    put_word(team + PHASES, phases)
    put_word(team + BLOCKS, blocks)
    put_word(team + WORK, setup[0])
    put_word(team + USERS, 1)
    if setup[2] > 1:
        for _ in range(min(setup[2], blocks, pool_threads(frame, team + ROOM)) - 1):
            add_atomically(team + USERS, 1)
            if not schedule(frame, team + ROOM, setup[1], team):
                add_atomically(team + USERS, -1)
    return team


def task(team):
    """What a thread of the pool does."""
    add_atomically(team + ACTIVE, 1)
    if add_atomically(team + CLOSED, 0) == 0:
        _take_part(team)
    add_atomically(team + ACTIVE, -1)
    _leave(team)
    return 0


def handle(frame):
    """Answer a call of XLA: run the steps; the last result is [2] how many were run, and whether none ended them."""
    if is_only_asked(frame):
        return 0
    n, block, count = length(frame, STATE, 0), word(operand(frame, SETUP) + 24), steps_to_do(frame)
    blocks = (n + block - 1) // block
    phases = 2 * count + count % 2  # after an odd number of steps the result is copied to its place
    team = _assemble(frame, phases, blocks)
    _take_part(team)
    add_atomically(team + CLOSED, 1)
    while add_atomically(team + ACTIVE, 0) > 0:
        let_others_run(0)
    ended = word(team + ENDED)
    if ended % 2 == 1:
        for i in range(blocks):
            call(word(team + WORK), team, 2 * count * blocks + i)
    put_word(result(frame, 0), ended if ended > 0 else count)
    put_word(result(frame, 0) + 8, 0 if ended > 0 else 1)
    _leave(team)
    return 0
