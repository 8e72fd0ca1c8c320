"""What most methods answer when an engine asks for their estimate or where the next gradient is wanted."""

from digrad.types import Array, State


def state_x(method: object, state: State) -> Array:
    """Return the x of the state; a method says ``estimate = query = state_x``."""
    return state.x


def debiased_x(method: object, state: State) -> Array:
    """Return x/w, row by row: the answer of a push-sum method, whose x carries the weight w of its agent."""
    return state.x / state.w
