"""The exceptions digrad raises on purpose.

Each message is one line that names the argument and its owner, what is required, what was received and what
to do. Every class is a child of :class:`DigradError`, so that ``except DigradError`` catches bad input and
nothing else.
"""


class DigradError(Exception):
    """Base of every error that digrad raises on purpose."""


class ArgumentError(DigradError, ValueError):
    """An argument has a value that the function cannot use."""


class GraphError(DigradError, ValueError):
    """A digraph is malformed, or lacks a property that was asked of it."""


class MixingError(DigradError, ValueError):
    """A mixing matrix is not what its user needs."""


class DataError(DigradError, ValueError):
    """A data set is missing, malformed or cannot be partitioned as asked."""


class SpecError(DigradError, ValueError):
    """An experiment specification is not valid."""


class CheckpointError(DigradError, RuntimeError):
    """A checkpoint is corrupt, or belongs to another run."""


class StorageError(DigradError, OSError):
    """A file cannot be written: the disk is full, or the place does not exist or belongs to someone else."""

    def __str__(self) -> str:
        """Return one line that names the file."""
        return f"{self.filename} cannot be written ({self.strerror}); make room, or give another place."


class WorkerError(DigradError, RuntimeError):
    """A worker process has ended, or a cluster does not answer; what was finished is kept."""


class CommunicationError(DigradError, RuntimeError):
    """An agent is silent, has gone, or disagrees with the others; the processes must be started again."""


class DisagreementError(CommunicationError):
    """The agents were started with different settings: starting them again as they are is in vain."""


class NonFiniteError(DigradError, RuntimeError):
    """A gradient or a state of an agent holds infinities or NaN; it was not mixed."""


class PluginError(DigradError, ImportError):
    """A method or a problem of another package cannot be loaded, or does not keep the contract."""
