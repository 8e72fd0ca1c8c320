"""The weights of averages: xbar = u^T x / n and ybar with v, for the matrices that x and y go through."""

from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.core.net import bindings
from digrad.core.network_delivery import is_unreliable
from digrad.network import Network

Vector = npt.NDArray[np.float64]


def perron_weights(method: Any, network: Network) -> tuple[Vector, Vector]:
    """Return u and v, ``[n]`` each with sum n: Perron vectors of R and C if the method uses them, else ones.

    A network that changes with the iteration, or whose packets may be lost or late, has no Perron vectors; there the
    weighted average is the plain mean.
    """
    used, ones = set(bindings(method).values()), np.ones(network.n)
    if network.period != 1 or is_unreliable(network):
        return ones, ones
    return (network.u if "R" in used else ones, network.v if "C" in used else ones)
