"""What a method is and where it comes from, read from its docstring."""

import inspect
import re

from digrad.algorithms import METHODS


def first_sentence(method: str) -> str:
    """Return the first line of a method's docstring.

    Example:
        >>> first_sentence("CGT")
        'Clipped gradient tracking for directed graphs (CGT).'
    """
    return _docstring(method).partition("\n")[0]


def reference(method: str) -> str:
    """Return the Reference paragraph of a method's docstring on one line, or an empty string.

    Example:
        >>> reference("CGT")
        'Y. Bo and Y. Wang, "Provably convergent ... generalized smoothness", 2026, Algorithm 1, arXiv:2601.03566.'
    """
    found = re.search(r"^References?:(.*?)(?=^\S|^\s*$|\Z)", _docstring(method), re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def _docstring(method: str) -> str:
    return inspect.getdoc(METHODS[method]) or ""
