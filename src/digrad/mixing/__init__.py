"""How much each message counts: row-, column- and doubly stochastic weights on a digraph; their spectra."""

from digrad.mixing.circulant import circulant
from digrad.mixing.network import LETTERS, Network
from digrad.mixing.sequence import AnyNetwork, NetworkSequence, StepWeights, arcs_used, step_weights
from digrad.mixing.spectral import perron_column, perron_row, rho, second_singular_value
from digrad.mixing.summary import NetworkSummary
from digrad.mixing.validation import custom
from digrad.mixing.weights import Mixing, column_stochastic, metropolis, row_stochastic, sinkhorn

__all__ = [
    "LETTERS",
    "AnyNetwork",
    "Mixing",
    "Network",
    "NetworkSequence",
    "NetworkSummary",
    "StepWeights",
    "arcs_used",
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
