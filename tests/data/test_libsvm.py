import bz2
import gzip
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad.data import read_libsvm
from digrad.errors import ArgumentError, DataError

GOOD = b"+1 1:0.5 3:-2e1 # seen twice\n\n# a comment line\n-1\n1 2:.5 \t 4:7\r\n"


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="toy"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write_file


def test_read_libsvm_reads_comments_blank_lines_and_empty_rows(write):
    data = read_libsvm(write(GOOD))
    assert data.is_sparse
    assert data.name == "toy"
    np.testing.assert_array_equal(data.labels, [1, -1, 1])
    np.testing.assert_array_equal(data.dense().features, [[0.5, 0, -20, 0], [0, 0, 0, 0], [0, 0.5, 0, 7]])


def test_read_libsvm_reads_a_last_line_without_newline(write):
    assert read_libsvm(write(b"1 1:1\n2 1:2")).labels.tolist() == [1, 2]


def test_read_libsvm_pads_to_dim(write):
    assert read_libsvm(write(GOOD), dim=9).dim == 9


def test_read_libsvm_reads_rows_without_features_when_dim_is_given(write):
    assert read_libsvm(write(b"1\n2\n"), dim=2).features.shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("toy.gz", gzip.compress),
        ("toy.bz2", bz2.compress),
        ("packed", gzip.compress),
        ("odd.txt", bz2.compress),
    ],
)
def test_read_libsvm_unpacks_by_content(write, name, pack):
    packed, plain = read_libsvm(write(pack(GOOD), name)), read_libsvm(write(GOOD))
    assert packed.content_hash == plain.content_hash
    assert packed.name == name.split(".")[0]


@pytest.mark.parametrize(
    "line",
    [
        b"yes 1:1",
        b"1:1 2:2",
        b"1 2",
        b"1 2:",
        b"1 :2",
        b"1 1:2:3",
        b"1 a:2",
        b"1 1.5:2",
        b"1 \xff:1",
        b"1 0:2",
        b"1 -3:2",
        b"1 2:1 2:1",
        b"1 3:1 2:1",
        b"1 99999999999999999999:1",
        b"1 2147483648:1",
    ],
)
def test_read_libsvm_names_the_file_and_the_line_that_is_bad(write, line):
    path = write(b"1 1:1\n\n" + line + b"\n1 1:1\n")
    with pytest.raises(DataError) as caught:
        read_libsvm(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", [b"nan 1:1", b"1 1:nan", b"1 1:-inf", b"1 1:1e999"])
def test_read_libsvm_names_the_sample_that_is_not_finite(write, line):
    with pytest.raises(DataError, match=r"sample 1 \(from 0\)"):
        read_libsvm(write(b"1 1:1\n\n" + line + b"\n1 1:1\n"))


def test_read_libsvm_says_which_index_exceeds_dim(write):
    with pytest.raises(DataError, match="index 5 exceeds `dim` = 4"):
        read_libsvm(write(b"1 4:1\n1 5:1\n"), dim=4)


def test_read_libsvm_shortens_a_long_token(write):
    with pytest.raises(DataError) as caught:
        read_libsvm(write(b"x" * 5000))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# only a comment\n"])
def test_read_libsvm_rejects_a_file_without_samples(write, content):
    with pytest.raises(DataError, match="has no samples"):
        read_libsvm(write(content))


def test_read_libsvm_rejects_a_file_without_features(write):
    with pytest.raises(DataError, match="no features"):
        read_libsvm(write(b"1\n2\n"))


def test_read_libsvm_rejects_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_libsvm(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read"):
        read_libsvm(tmp_path)


@pytest.mark.parametrize(("name", "pack"), [("toy.gz", gzip.compress), ("toy.bz2", bz2.compress)])
def test_read_libsvm_rejects_a_damaged_packed_file(write, name, pack):
    packed = pack(GOOD * 50)
    with pytest.raises(DataError, match="cannot be read"):
        read_libsvm(write(packed[: len(packed) // 2], name))
    middle = len(packed) // 2
    flipped = packed[:middle] + bytes([packed[middle] ^ 255]) + packed[middle + 1 :]
    with pytest.raises(DataError, match="cannot be read"):
        read_libsvm(write(flipped, name))


@pytest.mark.parametrize("name", ["toy.gz", "toy.bz2"])
def test_read_libsvm_rejects_a_suffix_that_lies(write, name):
    with pytest.raises(DataError, match="not packed that way"):
        read_libsvm(write(GOOD, name))


def test_read_libsvm_accepts_the_largest_index_but_not_as_a_dense_array(write):
    data = read_libsvm(write(b"1 2147483647:1\n" * 5))
    assert data.dim == 2**31 - 1
    with pytest.raises(
        DataError, match=r"as a dense array of 5 x 2147483647 would take 85\.9 GB\. Keep them sparse"
    ):
        data.dense()
    with pytest.raises(ArgumentError, match="`dim` of read_libsvm must be at most 2147483647"):
        read_libsvm(write(b"1 1:1\n"), dim=2**31)


def test_read_libsvm_rejects_a_dim_below_one(write):
    with pytest.raises(ArgumentError, match="`dim` of read_libsvm"):
        read_libsvm(write(GOOD), dim=0)


values = st.floats(allow_nan=False, allow_infinity=False)
rows = st.lists(
    st.tuples(values, st.dictionaries(st.integers(1, 20), values, max_size=5)), min_size=1, max_size=8
)


@given(rows=rows)
@settings(max_examples=50, deadline=None)
def test_read_libsvm_returns_what_was_written(tmp_path_factory, rows):
    lines = [" ".join([repr(y), *(f"{i}:{v!r}" for i, v in sorted(x.items()))]) for y, x in rows]
    path = tmp_path_factory.mktemp("libsvm") / "written"
    path.write_text("\n".join(lines))
    data = read_libsvm(path, dim=20)
    expected = np.zeros((len(rows), 20))
    for row, (_, features) in enumerate(rows):
        for index, value in features.items():
            expected[row, index - 1] = value
    np.testing.assert_array_equal(data.dense().features, expected)
    np.testing.assert_array_equal(data.labels, [label for label, _ in rows])


@pytest.mark.a9a
def test_read_libsvm_reads_a9a_in_time(a9a_folder):
    path = next(p for p in sorted(a9a_folder.iterdir()) if p.name in ("a9a", "a9a.bz2", "a9a.gz", "a9a.txt"))
    start = time.process_time()
    data = read_libsvm(path)
    assert time.process_time() - start < 1.5
    assert data.features.shape == (32561, 123)
    nonzeros = np.diff(data.features.indptr)
    assert (nonzeros.min(), nonzeros.max()) == (11, 14)
    assert set(data.features.data) == {1.0}
    assert sorted(set(data.labels)) == [-1.0, 1.0]
    assert data.content_hash == "5991fed3a234afcb5e759394b1af69e6276eb01a2c79409264f6747d56dc40a4"
