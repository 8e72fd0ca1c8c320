"""The error of a network of processes."""

from digrad.errors import DigradError


class CommunicationError(DigradError, RuntimeError):
    """An agent is silent, has gone, or disagrees with the others; the processes must be started again."""
