"""The usual answers of methods: their estimate, its weight, where a gradient is wanted, what shapes a row has."""

from digrad.types import Array, Net, Shapes, State


def state_x(method: object, state: State) -> Array:
    """Return the x of the state; a method says ``estimate = query = state_x``."""
    return state.x


def debiased_x(method: object, state: State) -> Array:
    """Return x/w, row by row: the answer of a push-sum method, whose x carries the weight w of its agent."""
    return state.x / state.w


def state_w(method: object, state: State) -> Array:
    """Return the w of the state, ``[n, 1]``: a push-sum method conserves the sum of w times its estimates."""
    return state.w


def parameter_shapes(x: Array, net: Net) -> Shapes:
    """Return the shapes of the parameters in a row of x: as the engine knows them, or one vector."""
    return net.shapes or ((x.shape[1],),)
