import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_digits

from digrad.data import Dataset, binary_labels, breast_cancer, digits, load
from digrad.errors import ArgumentError, DataError


def toy(labels=(0, 1, 0)):
    return Dataset("toy", np.arange(6.0).reshape(3, 2), np.array(labels))


def test_dataset_reports_its_shape():
    data = toy()
    assert (data.n_samples, data.dim, data.is_sparse) == (3, 2, False)
    assert repr(data) == "Dataset('toy', 3 x 2, dense)"


@pytest.mark.parametrize(
    ("features", "labels"),
    [(np.zeros((3, 2)), np.zeros(2)), (np.zeros(3), np.zeros(3)), (np.zeros((0, 2)), np.zeros(0))],
)
def test_dataset_rejects_shapes_that_do_not_agree(features, labels):
    with pytest.raises(DataError, match="needs features"):
        Dataset("bad", features, labels)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_dataset_rejects_features_that_are_not_finite(value, make):
    with pytest.raises(DataError, match="finite"):
        Dataset("bad", make([[1.0, value]]), np.zeros(1))


def test_dataset_rejects_labels_of_mixed_objects():
    with pytest.raises(DataError, match="mixed objects"):
        Dataset("bad", np.zeros((2, 1)), np.array([1, "a"], dtype=object))


def test_dataset_keeps_any_sparse_matrix_as_csr_without_changing_it():
    given = sp.coo_array(([1.0, 2.0, 3.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    data = Dataset("sparse", given, np.zeros(2))
    assert data.is_sparse
    assert given.nnz == 3
    np.testing.assert_array_equal(data.dense().features, [[0, 3], [3, 0]])


def test_dense_of_dense_data_is_itself():
    data = toy()
    assert data.dense() is data


def test_standardized_has_mean_zero_and_deviation_one():
    features = np.random.default_rng(0).normal(3, 7, (50, 4))
    scaled = Dataset("toy", sp.csr_array(features), np.zeros(50)).standardized().features
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(axis=0), 1, atol=1e-12)


def test_standardized_sets_constant_columns_to_zero_whatever_their_rounding():
    features = np.full((7, 3), [0.1, 1e9 + 0.1, 0.0])
    assert not Dataset("toy", features, np.zeros(7)).standardized().features.any()


def test_content_hash_depends_on_content_and_not_on_the_name():
    first, second = toy(), Dataset("other", toy().features, toy().labels)
    assert first.content_hash == second.content_hash
    assert len(first.content_hash) == 64
    changed = [
        Dataset("toy", first.features + 1, first.labels),
        Dataset("toy", first.features, first.labels + 1),
        Dataset("toy", first.features.astype(np.float32), first.labels),
        Dataset("toy", first.features.reshape(3, 2)[:, ::-1], first.labels),
    ]
    assert len({first.content_hash, *(data.content_hash for data in changed)}) == 5


def test_content_hash_of_sparse_data_ignores_the_width_of_indices_and_their_order():
    labels = np.zeros(1)
    sorted_ = sp.csr_array((np.array([1.0, 2.0]), np.array([0, 2]), np.array([0, 2])), shape=(1, 3))
    shuffled = sp.csr_array(
        (np.array([2.0, 1.0]), np.array([2, 0], dtype=np.int64), np.array([0, 2], dtype=np.int64)),
        shape=(1, 3),
    )
    assert Dataset("a", sorted_, labels).content_hash == Dataset("b", shuffled, labels).content_hash


@pytest.mark.parametrize("labels", [(-1.0, 1.0, -1.0), (1, 2, 1), ("no", "yes", "no"), (False, True, False)])
def test_binary_labels_maps_the_larger_label_to_one(labels):
    mapped = binary_labels(toy(labels))
    assert mapped.dtype == np.int64
    assert mapped.tolist() == [0, 1, 0]


@pytest.mark.parametrize("positive", [{3}, [3], lambda label: label > 2])
def test_binary_labels_uses_positive(positive):
    assert binary_labels(toy((1, 3, 2)), positive=positive).tolist() == [0, 1, 0]


def test_binary_labels_names_the_labels_when_there_are_not_two():
    with pytest.raises(DataError, match=r"'toy', but it has 3 \(1, 2, 3\)"):
        binary_labels(toy((1, 3, 2)))
    with pytest.raises(DataError, match=r"1 \(5\)"):
        binary_labels(toy((5, 5, 5)))


def test_binary_labels_shortens_a_long_list_of_labels():
    with pytest.raises(DataError, match=r"20 \(0, 1, 2, 3, 4, 5, \.\.\.\)"):
        binary_labels(Dataset("many", np.zeros((20, 1)), np.arange(20)))


@pytest.mark.parametrize(("positive", "word"), [({9}, "none"), ({1, 2, 3}, "all")])
def test_binary_labels_rejects_a_positive_that_selects_none_or_all(positive, word):
    with pytest.raises(DataError, match=f"selects {word} of 3"):
        binary_labels(toy((1, 3, 2)), positive=positive)


def test_digits_has_two_standardised_classes_and_ten_on_request():
    two, ten = digits(), digits(classes=10)
    assert (two.n_samples, two.dim) == (1797, 64)
    assert sorted(set(ten.labels.tolist())) == list(range(10))
    np.testing.assert_array_equal(two.labels, ten.labels >= 5)
    np.testing.assert_allclose(two.features.mean(axis=0), 0, atol=1e-12)


def test_digits_rejects_another_number_of_classes():
    with pytest.raises(ArgumentError, match="2 or 10"):
        digits(classes=3)


def test_breast_cancer_is_standardised():
    data = breast_cancer()
    assert (data.n_samples, data.dim) == (569, 30)
    np.testing.assert_allclose(data.features.std(axis=0), 1, atol=1e-12)


def test_a_name_that_is_no_misspelling_gets_no_wild_guess():
    with pytest.raises(DataError) as caught:
        load("iris")
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(DataError, match="Did you mean `digits`"):
        load("digit")


def test_labels_that_are_missing_are_no_class():
    with pytest.raises(DataError, match="that of row 2 is missing"):
        Dataset("toy", np.eye(3), np.array([1.0, 0.0, np.nan]))
    with pytest.raises(DataError, match="that of row 0 is missing"):
        Dataset("toy", np.eye(2), np.array(["NaT", "2026-01-01"], "datetime64[D]"))


def test_bundled_sets_are_those_of_scikit_learn_which_is_not_imported():
    code = "import sys, digrad as dg; dg.data.digits(), dg.data.breast_cancer(); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    for ours, given in ((digits(classes=10), load_digits), (breast_cancer(), load_breast_cancer)):
        features, labels = given(return_X_y=True)
        np.testing.assert_array_equal(
            ours.features, Dataset("same", features, labels).standardized().features
        )
        np.testing.assert_array_equal(ours.labels, labels)
