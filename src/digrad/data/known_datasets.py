"""The data sets that digrad knows by name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownDataset:
    """A data set with a name.

    Args:
        name: Its name for users; of one of the LIBSVM site, also that of its file there.
        source: ``bundled`` with scikit-learn, ``libsvm`` or ``images``.
        n_samples: The number of samples.
        dim: The number of features, which a part of the data may not show (``a9a.t`` stops at 122).
        description: One line for lists.
        sha256: SHA-256 of the unpacked text of a LIBSVM file.
    """

    name: str
    source: str
    n_samples: int
    dim: int
    description: str
    sha256: str = ""


_DATASETS = (
    KnownDataset("digits", "bundled", 1797, 64, "handwritten digits, 8 x 8 pixels; is the digit at least 5?"),
    KnownDataset("breast_cancer", "bundled", 569, 30, "tumour measurements; benign or malignant?"),
    KnownDataset(
        "a9a",
        "libsvm",
        32561,
        123,
        "census records as 0/1 features; is the income above 50 000? (training set)",
        "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    ),
    KnownDataset(
        "a9a.t",
        "libsvm",
        16281,
        123,
        "census records as 0/1 features; is the income above 50 000? (test set)",
        "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    ),
    KnownDataset(
        "cifar10",
        "images",
        50_000,
        3 * 32 * 32,
        "colour images of ten classes, 32 x 32 pixels, for torch models (and 10 000 test images)",
    ),
)

KNOWN = {each.name: each for each in _DATASETS}
