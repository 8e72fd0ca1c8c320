"""Local directions: what an optimizer makes of the clipped tracker, in place of a plain step along it."""

from digrad.directions.directed_cgt import DirectedCGT, Direction
from digrad.directions.of_optax import from_optax
from digrad.directions.of_torch import from_torch

__all__ = ["DirectedCGT", "Direction", "from_optax", "from_torch"]
