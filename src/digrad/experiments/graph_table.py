"""The tables ``[graph]`` and ``[mixing]`` of a specification: who hears whom, with which weights."""

import inspect
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from digrad import graphs
from digrad.errors import DigradError, SpecError
from digrad.experiments.complaints import Table, refuse, require_choice
from digrad.graphs import GENERATORS, Digraph
from digrad.mixing import Network

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class GraphTable(Table):
    """``[graph]``: the name of a generator with its arguments, or a file.

    Args:
        kind: A generator of :mod:`digrad.graphs`, e.g. ``"ring"``; the other keys are its arguments.
        file: A graph file (JSON or edge list), instead of ``kind``.
        n: Number of agents.
        p: Probability of an arc.
        k: Out-degree.
        rows: Of a grid.
        columns: Of a grid.
        seed: Of a random graph; 0 by default.
    """

    kind: str | None = None
    file: str | None = None
    n: int | None = None
    p: float | None = None
    k: int | None = None
    rows: int | None = None
    columns: int | None = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _check(self) -> "GraphTable":
        if (self.kind is None) == (self.file is None):
            raise refuse("needs either `kind`, the name of a generator, or `file`, and not both.")
        if self.kind is None:
            if self._arguments():
                raise refuse(f"`{next(iter(self._arguments()))}` is for generators, but `file` is given.")
            return self
        require_choice(self.kind, GENERATORS, "kind")
        parameters = inspect.signature(GENERATORS[self.kind]).parameters
        takes = f"{self.kind} takes {', '.join(parameters) or 'no arguments'}"
        for name in self._arguments():
            if name not in parameters:
                raise refuse(f"{takes}, so remove it.", name)
        for name in parameters:
            if name not in {*self._arguments(), "seed"}:
                raise refuse(f"is required, but it is missing; {takes}.", name)
        return self

    def _arguments(self) -> dict[str, float]:
        return self.model_dump(exclude={"kind", "file"}, exclude_none=True)

    def resolved(self, base: Path) -> "GraphTable":
        """Return the table with its file relative to ``base`` made absolute."""
        return self if self.file is None else self.model_copy(update={"file": absolute(self.file, base)})

    def build(self) -> Digraph:
        """Return the digraph."""
        if self.kind is None:
            return graphs.read(str(self.file))
        generator = GENERATORS[self.kind]
        takes_seed = "seed" in inspect.signature(generator).parameters
        return generator(**{**({"seed": 0} if takes_seed else {}), **self._arguments()})


class MixingTable(Table):
    """``[mixing]``: files of comma-separated weights that replace the uniform ones.

    Args:
        R_file: Row-stochastic weights; line i holds what receiver i gives to each sender.
        C_file: Column-stochastic weights.
        W_file: Doubly stochastic weights.
    """

    R_file: str | None = None
    C_file: str | None = None
    W_file: str | None = None

    def resolved(self, base: Path) -> "MixingTable":
        """Return the table with files relative to ``base`` made absolute."""
        given = self.model_dump(exclude_none=True)
        return self.model_copy(update={key: absolute(file, base) for key, file in given.items()})

    def build(self, graph: Digraph) -> Network:
        """Return the network of ``graph`` with these weights.

        Raises:
            SpecError: A file cannot be read, or its weights are refused; the message begins with the key.
        """
        matrices = {
            key[0]: _read_matrix(file, key) for key, file in self.model_dump(exclude_none=True).items()
        }
        try:
            return Network(graph, **matrices)
        except DigradError as error:
            raise SpecError(f"`{'mixing' if matrices else 'graph'}`: {error}") from error


def absolute(file: str, base: Path) -> str:
    """Return ``file`` as an absolute path, relative to ``base`` unless it is one already."""
    return str((base / Path(file).expanduser()).absolute())


def _read_matrix(file: str, key: str) -> npt.NDArray[np.float64]:
    path = Path(file)
    if not path.exists():
        raise SpecError(f"`mixing.{key}`: {file} does not exist; give a file of comma-separated numbers.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [line for line in lines if line.partition("#")[0].strip()]
        if not rows:
            raise ValueError("it is empty")
        return np.loadtxt(rows, delimiter=",", ndmin=2, dtype=np.float64)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"`mixing.{key}`: {file} is not a file of comma-separated numbers ({error})."
        ) from error
