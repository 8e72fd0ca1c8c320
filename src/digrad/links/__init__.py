"""What happens to a message on its way from one agent to another."""

from digrad.links.rounded import Rounded, rounded
from digrad.links.seam import Link, heard

__all__ = ["Link", "Rounded", "heard", "rounded"]
