"""Data sets and how they are partitioned among agents."""

from digrad.data.bundled import breast_cancer, digits
from digrad.data.cache import locate
from digrad.data.cifar import cifar10
from digrad.data.dataset import Dataset, binary_labels
from digrad.data.images import ImageSet, augmented, normalized
from digrad.data.libsvm import read_libsvm
from digrad.data.loading import fetch, list_datasets, load, verify
from digrad.data.partition import Partition, partition

__all__ = [
    "Dataset",
    "ImageSet",
    "Partition",
    "augmented",
    "binary_labels",
    "breast_cancer",
    "cifar10",
    "digits",
    "fetch",
    "list_datasets",
    "load",
    "locate",
    "normalized",
    "partition",
    "read_libsvm",
    "verify",
]
