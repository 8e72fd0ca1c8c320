"""The compiled simulator: many agents in one process, one call."""

from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.compare import compare
from digrad.simulation.run_options import Record, RunOptions, SimulatorOptions
from digrad.simulation.simulate import Progress, simulate
from digrad.simulation.simulator import Simulator
from digrad.simulation.tensorboard import TensorBoard

__all__ = [
    "Checkpoint",
    "Progress",
    "Record",
    "RunOptions",
    "Simulator",
    "SimulatorOptions",
    "TensorBoard",
    "compare",
    "simulate",
]
