"""A data set: features, labels and a fingerprint of both."""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from digrad.data.nan_check import not_finite_row
from digrad.errors import DataError

Features: TypeAlias = npt.NDArray[Any] | sp.csr_array
Positive: TypeAlias = Callable[[Any], bool] | Collection[Any]

_LARGEST_DENSE = 2**36  # bytes, 69 GB: beyond it an array is a mistake, not a wish
_ROWS_HASHED = 1 << 16  # at once
_LABELS_NAMED = 6  # an error message lists at most this many labels


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with one label each.

    Args:
        name: Its name in reports.
        features: ``[m, d]``, one sample per row: a NumPy array or a SciPy sparse matrix (kept as CSR).
        labels: ``[m]``.

    Raises:
        DataError: When the shapes do not agree, there is no sample, or a feature is not a finite number.

    Example:
        >>> data = Dataset("toy", np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([-1, 1]))
        >>> data.n_samples, data.dim, data.is_sparse
        (2, 2, False)
        >>> data.standardized().features
        array([[-1., 0.], [ 1., 0.]])
    """

    name: str
    features: Features
    labels: npt.NDArray[Any]

    def __post_init__(self) -> None:
        features = _canonical(self.features) if sp.issparse(self.features) else np.asarray(self.features)
        labels = np.asarray(self.labels)
        shape = cast(tuple[int, ...], features.shape)
        if len(shape) != 2 or labels.ndim != 1 or shape[0] != labels.shape[0] or not labels.size:
            raise DataError(
                f"`Dataset` {self.name!r} needs features [m, d] and labels [m] with m >= 1, but got shapes "
                f"{shape} and {labels.shape}. Give one label per row of features."
            )
        _check_values(features, labels, self.name)
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        return f"Dataset({self.name!r}, {self.n_samples} x {self.dim}, {kind})"

    @property
    def n_samples(self) -> int:
        """The number of samples m."""
        return len(self.labels)

    @property
    def dim(self) -> int:
        """The number of features d."""
        return int(cast(tuple[int, int], self.features.shape)[1])

    @property
    def is_sparse(self) -> bool:
        """Return whether the features are stored as CSR."""
        return isinstance(self.features, sp.csr_array)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the shapes, dtypes and bytes of features and labels; the name is not part of it."""
        digest = hashlib.sha256()
        features = self.features
        if isinstance(features, sp.csr_array):
            # SciPy chooses 32 or 64 bits for the indices; the same matrix must have one hash.
            parts = [(features.indptr, np.int64), (features.indices, np.int64), (features.data, None)]
        else:
            parts = [(features, None)]
        digest.update(f"{'csr' if self.is_sparse else 'dense'} {features.shape}".encode())
        for part, dtype in [*parts, (self.labels, None)]:
            digest.update(f" {np.dtype(dtype or part.dtype).str} {part.shape} ".encode())
            for begin in range(0, len(part), _ROWS_HASHED):  # no copy of what may be larger than memory
                digest.update(np.ascontiguousarray(part[begin : begin + _ROWS_HASHED], dtype).tobytes())
        return digest.hexdigest()

    def split(self, share: float, *, seed: int) -> tuple["Dataset", "Dataset"]:
        """Return the samples without a random ``share`` of them, and that share.

        Args:
            share: At least one sample goes to each side.
            seed: Random seed of the choice.

        Example:
            >>> data = Dataset("toy", np.arange(10.0)[:, None], np.arange(10))
            >>> [part.n_samples for part in data.split(0.2, seed=0)]
            [8, 2]
        """
        count = round(share * self.n_samples)
        if not 0 < count < self.n_samples:
            raise DataError(
                f"`share` of Dataset.split must leave samples on both sides, but {share!r} of {self.n_samples} leaves "
                "none on one; give a number between 0 and 1."
            )
        order = np.random.default_rng(seed).permutation(self.n_samples)
        kept, rest = np.sort(order[count:]), np.sort(order[:count])
        return tuple(  # pyright: ignore[reportReturnType]
            replace(self, features=self.features[places], labels=self.labels[places])
            for places in (kept, rest)
        )

    def dense(self) -> "Dataset":
        """Return the same data with the features as a NumPy array.

        Raises:
            DataError: The array would take more than 69 GB.
        """
        if isinstance(self.features, sp.csr_array):
            size = self.n_samples * self.dim * self.features.dtype.itemsize
            if size > _LARGEST_DENSE:
                raise DataError(
                    f"`features` of `Dataset` {self.name!r} as a dense array of {self.n_samples} x {self.dim} would "
                    f"take {size / 1e9:.3g} GB. Keep them sparse, or leave out features."
                )
            return replace(self, features=self.features.toarray())
        return self

    def standardized(self) -> "Dataset":
        """Return dense data whose columns have mean 0 and standard deviation 1; constant columns become 0."""
        features = np.asarray(self.dense().features, dtype=np.float64)
        # Compared, not computed: the rounded deviation of a constant column need not be exactly zero.
        is_constant = features.max(axis=0) == features.min(axis=0)
        deviation = np.where(is_constant, 1.0, features.std(axis=0))
        scaled = (features - features.mean(axis=0)) / deviation
        return replace(self, features=np.where(is_constant, 0.0, scaled))


def binary_labels(dataset: Dataset, positive: Positive | None = None) -> npt.NDArray[np.int64]:
    """Return the labels of ``dataset`` as 0 and 1, ``[m]``.

    Args:
        dataset: Its labels may be of any type that sorts.
        positive: Which labels become 1: a function of a label, or a collection of labels. Without it there
            must be exactly two labels, and the larger becomes 1.

    Raises:
        DataError: When the result would not have exactly two classes.

    Example:
        >>> toy = Dataset("toy", np.zeros((3, 1)), np.array([-1.0, 1.0, -1.0]))
        >>> binary_labels(toy)
        array([0, 1, 0])
        >>> binary_labels(toy, positive={-1})
        array([1, 0, 1])
    """
    classes, inverse = np.unique(dataset.labels, return_inverse=True)
    if positive is None:
        if len(classes) != 2:
            raise DataError(
                f"`binary_labels` needs exactly two labels in data set {dataset.name!r}, but it has "
                f"{_named(classes)}. Say which labels count as 1 with `positive`."
            )
        return inverse.astype(np.int64)
    is_positive = _membership(positive)
    chosen = np.array([is_positive(label) for label in classes.tolist()], dtype=np.int64)
    if chosen.min() == chosen.max():
        raise DataError(
            f"`positive` of `binary_labels` must select some, not all, labels of data set {dataset.name!r}, "
            f"but it selects {'all' if chosen[0] else 'none'} of {_named(classes)}. Select a part of them."
        )
    return chosen[inverse]


def _membership(positive: Positive) -> Callable[[Any], bool]:
    if callable(positive):
        return lambda label: bool(positive(label))
    return lambda label: label in positive


def _named(classes: npt.NDArray[Any]) -> str:
    listed = ", ".join(repr(label) for label in classes[:_LABELS_NAMED].tolist())
    more = ", ..." if len(classes) > _LABELS_NAMED else ""
    return f"{len(classes)} ({listed}{more})"


def _check_values(features: Features, labels: npt.NDArray[Any], name: str) -> None:
    if features.dtype.kind not in "biuf":
        raise DataError(f"`features` of `Dataset` {name!r} must be finite numbers, but got {features.dtype}.")
    row = not_finite_row(features)
    if row is not None:
        raise DataError(
            f"`features` of `Dataset` {name!r} must be finite numbers, but row {row} is not. "
            "Replace missing values first."
        )
    if labels.dtype.kind == "O":
        raise DataError(f"`labels` of `Dataset` {name!r} must be numbers or strings, but got mixed objects.")
    missing = np.flatnonzero(labels != labels)
    if missing.size:
        raise DataError(
            f"`labels` of `Dataset` {name!r} must be numbers or strings, but that of row {missing[0]} is missing "
            f"({labels[missing[0]]}). Remove such samples first."
        )


def _canonical(features: Any) -> sp.csr_array:
    matrix = sp.csr_array(features)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # the caller's matrix is not ours to sort
        matrix.sum_duplicates()
    return matrix
