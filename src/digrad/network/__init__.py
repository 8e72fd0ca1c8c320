"""Networks: row-, column- and doubly stochastic weights on a digraph, and their spectra."""

from digrad.network.circulant import circulant
from digrad.network.mixing_speed import rho, second_singular_value
from digrad.network.network import Network
from digrad.network.perron_vectors import perron_column, perron_row
from digrad.network.step_weights import StepWeights, step_weights
from digrad.network.summary import NetworkSummary
from digrad.network.validation import Connectivity, custom
from digrad.network.weights import KINDS, Mixing, column_stochastic, metropolis, row_stochastic, sinkhorn

__all__ = [
    "KINDS",
    "Connectivity",
    "Mixing",
    "Network",
    "NetworkSummary",
    "StepWeights",
    "circulant",
    "column_stochastic",
    "custom",
    "metropolis",
    "perron_column",
    "perron_row",
    "rho",
    "row_stochastic",
    "second_singular_value",
    "sinkhorn",
    "step_weights",
]
