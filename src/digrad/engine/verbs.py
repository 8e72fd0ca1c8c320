"""Which matrix a method's verbs stand for: the one table that every engine binds its executor with."""

from typing import Any

from digrad.mixing import LETTERS

VERBS = {"row": "pull", "column": "push", "doubly": "mix"}  # what a need of a method is called on the net


def bindings(method: Any) -> dict[str, str]:
    """Return the matrix ``R``, ``C`` or ``W`` behind each verb that a method uses.

    ``mix`` is W, except for a one-matrix method with ``mixing="row"``, whose single matrix is R.

    >>> from digrad.algorithms import CGT, DGD
    >>> bindings(CGT(step_size=0.1, threshold=1.0)), bindings(DGD(step_size=0.1, mixing="row"))
    ({'pull': 'R', 'push': 'C'}, {'mix': 'R'})
    """
    bound = {verb: LETTERS[need] for need, verb in VERBS.items() if need in method.needs}
    if "mix" in bound and getattr(method, "mixing", None) == "row":
        bound["mix"] = LETTERS["row"]
    return bound


def required(method: Any) -> frozenset[str]:
    """Return what a network must offer for a method, as ``Network.require`` asks for it.

    >>> from digrad.algorithms import DGD
    >>> required(DGD(step_size=0.1, mixing="row"))
    frozenset({'row'})
    """
    letters = set(bindings(method).values())
    return frozenset(need for need, letter in LETTERS.items() if letter in letters) | (
        method.needs & {"mean"}
    )
