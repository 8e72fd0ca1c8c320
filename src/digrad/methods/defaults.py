"""What most methods answer when an engine asks for their estimate, its weight, or where a gradient is wanted."""

from digrad.types import Array, State


def state_x(method: object, state: State) -> Array:
    """Return the x of the state; a method says ``estimate = query = state_x``."""
    return state.x


def debiased_x(method: object, state: State) -> Array:
    """Return x/w, row by row: the answer of a push-sum method, whose x carries the weight w of its agent."""
    return state.x / state.w


def state_w(method: object, state: State) -> Array:
    """Return the w of the state, ``[n, 1]``: a push-sum method conserves the sum of w times its estimates."""
    return state.w
