"""Data sets that come with scikit-learn: nothing to download."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from digrad.data.dataset import Dataset, binary_labels
from digrad.errors import ArgumentError


def digits(*, classes: int = 2) -> Dataset:
    """Return the 1797 handwritten digits of 8 x 8 pixels, standardised.

    Args:
        classes: 2 labels a digit 1 when it is at least 5 and 0 otherwise; 10 labels it by itself.

    Example:
        >>> digits().features.shape, sorted(set(digits().labels.tolist()))
        ((1797, 64), [0, 1])
    """
    if classes not in (2, 10):
        raise ArgumentError(f"`classes` of digits must be 2 or 10, but got {classes!r}.")
    data = _standardized("digits", "digits.csv.gz")
    if classes == 10:
        return data
    return replace(data, labels=binary_labels(data, positive=lambda digit: digit >= 5))


def breast_cancer() -> Dataset:
    """Return the 569 tumours of the Wisconsin study with 30 measurements, standardised; label 1 is benign.

    Example:
        >>> breast_cancer()
        Dataset('breast_cancer', 569 x 30, dense)
    """
    return _standardized("breast_cancer", "breast_cancer.csv", heading=1)


def _standardized(name: str, file: str, *, heading: int = 0) -> Dataset:
    # Not by scikit-learn's own functions: its import takes longer than all the rest of a first run.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "datasets" / "data" / file
    table = np.loadtxt(path, delimiter=",", skiprows=heading)
    return Dataset(name, table[:, :-1].copy(), table[:, -1].astype(np.int64)).standardized()


BUNDLED: dict[str, Callable[[], Dataset]] = {"digits": digits, "breast_cancer": breast_cancer}
