"""The compiled simulator: many agents in one process, one call."""

from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.run import Progress
from digrad.simulation.simulate import compare, simulate

__all__ = ["Checkpoint", "Progress", "compare", "simulate"]
