"""The LIBSVM data sets that digrad knows by name, with the hash of their text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CatalogEntry:
    """A data set of the LIBSVM site.

    Args:
        name: Its name for users.
        file: The name of its file below the base address.
        sha256: SHA-256 of the unpacked text.
        dim: The number of features, which a part of the data may not show (``a9a.t`` stops at 122).
        n_samples: The number of samples.
        description: One line for lists.
    """

    name: str
    file: str
    sha256: str
    dim: int
    n_samples: int
    description: str


_ENTRIES = (
    CatalogEntry(
        name="a9a",
        file="a9a",
        sha256="f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
        dim=123,
        n_samples=32561,
        description="census records as 0/1 features; is the income above 50 000? (training set)",
    ),
    CatalogEntry(
        name="a9a.t",
        file="a9a.t",
        sha256="1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
        dim=123,
        n_samples=16281,
        description="census records as 0/1 features; is the income above 50 000? (test set)",
    ),
)

CATALOG: dict[str, CatalogEntry] = {entry.name: entry for entry in _ENTRIES}
