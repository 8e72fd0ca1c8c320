import pickle
import tarfile

import numpy as np
import pytest

from digrad.data import cifar, cifar10, fetch, list_datasets, verify
from digrad.data.images import MEAN, STD
from digrad.errors import DataError
from image_problems import records, write_batches


@pytest.fixture
def empty_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("DIGRAD_DATA", raising=False)
    monkeypatch.setenv("DIGRAD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def generated_sums(monkeypatch, tmp_path):
    """Let generated batches have the official sums."""
    from hashlib import md5

    folder = write_batches(tmp_path / "sums", 20)
    sums = {name: md5((folder / f"{name}.bin").read_bytes()).hexdigest() for name in cifar.BATCHES}
    monkeypatch.setattr(cifar, "BINARY_MD5", sums)


def write_pickles(folder, count=20):
    folder.mkdir(parents=True)
    for seed, name in enumerate(cifar.BATCHES):
        part = records(count, seed)
        batch = {b"data": part[:, 1:], b"labels": part[:, 0].tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


@pytest.fixture
def archive(monkeypatch, tmp_path):
    """The archive of the authors, with generated batches, at an address that can be reached."""
    from hashlib import md5

    file = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(file, "w:gz") as packed:
        packed.add(write_batches(tmp_path / "written", 20), "cifar-10-batches-bin")
    monkeypatch.setattr(cifar, "URL", file.as_uri())
    monkeypatch.setattr(cifar, "ARCHIVE_MD5", md5(file.read_bytes()).hexdigest())


@pytest.mark.parametrize("write", [write_batches, write_pickles])
def test_cifar10_reads_binary_and_python_batches_alike(write, tmp_path):
    folder = write(tmp_path / "batches", 20)
    train, test = cifar10(folder), cifar10(folder, train=False)
    expected = np.concatenate([records(20, seed) for seed in range(5)])
    assert (len(train), len(test)) == (100, 20)
    np.testing.assert_array_equal(train.labels, expected[:, 0])
    chosen = np.array([99, 0, 45])
    np.testing.assert_array_equal(train.take(chosen).reshape(3, -1), expected[chosen, 1:])


def test_cifar10_maps_binary_batches_instead_of_loading_them(tmp_path):
    assert all(isinstance(part, np.memmap) for part in cifar10(write_batches(tmp_path, 20)).records)


def test_cifar10_does_not_run_what_a_pickle_names(tmp_path):
    folder = write_pickles(tmp_path / "batches")

    class Program:
        def __reduce__(self):
            return print, ("run",)

    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Program()}))
    with pytest.raises(DataError, match=r"not a Python batch.*builtins\.print"):
        cifar10(folder)


def test_cifar10_says_how_to_get_it_when_absent(empty_machine):
    with pytest.raises(DataError, match="digrad data get cifar10"):
        cifar10()
    row = next(row for row in list_datasets() if row.name == "cifar10")
    assert row.location is None


def test_cifar10_refuses_other_files_in_the_data_folder(empty_machine, monkeypatch, tmp_path):
    monkeypatch.setenv("DIGRAD_DATA", str(tmp_path / "data"))
    write_batches(tmp_path / "data" / "cifar-10-batches-bin", 20)
    with pytest.raises(DataError, match=r"MD5 sum of data_batch_1\.bin must be 5dd7e06a"):
        cifar10()


def test_cifar10_refuses_a_truncated_batch(tmp_path):
    folder = write_batches(tmp_path, 20)
    (folder / "data_batch_3.bin").write_bytes(b"123")
    with pytest.raises(DataError, match=r"data_batch_3\.bin must hold records of 3073 bytes, but has 3"):
        cifar10(folder)


def test_fetch_unpacks_the_archive_into_the_cache(empty_machine, generated_sums, archive):
    events = []
    found = fetch("cifar10", progress=lambda done, total: events.append((done, total)))
    assert found.location == str(cifar.find_cifar10())
    assert events[-1][0] == events[-1][1]
    assert verify("cifar10").n_samples == 100


def test_fetch_says_what_to_do_when_the_archive_is_out_of_reach(empty_machine, monkeypatch, tmp_path):
    monkeypatch.setattr(cifar, "URL", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9.*DIGRAD_DATA") as caught:
        fetch("cifar10")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").iterdir())


def test_fetch_keeps_nothing_when_the_sums_are_wrong(empty_machine, archive, tmp_path):
    with pytest.raises(DataError, match="MD5 sum of data_batch_1"):
        fetch("cifar10")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.cifar10
def test_cifar10_has_the_official_sums_and_the_pixels_that_normalisation_assumes(cifar10_folder):
    train, test = cifar10(), cifar10(train=False)
    assert cifar.mismatch(cifar10_folder) is None
    assert np.bincount(train.labels).tolist() == [5000] * 10
    assert np.bincount(test.labels).tolist() == [1000] * 10
    counts = np.zeros((3, 256))
    for part in train.records:
        for channel, pixels in enumerate(np.split(part[:, 1:], 3, axis=1)):
            counts[channel] += np.bincount(pixels.ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = counts @ values / counts.sum(1)
    np.testing.assert_allclose(mean, MEAN, atol=1e-6)
    np.testing.assert_allclose(np.sqrt(counts @ values**2 / counts.sum(1) - mean**2), STD, atol=1e-6)


@pytest.mark.parametrize("label", [300, -1, 1.7, float("nan"), 10])
def test_cifar10_refuses_invalid_labels(label, tmp_path):
    folder = write_pickles(tmp_path / "batches", 3)
    batch = {b"data": records(3, 0)[:, 1:], b"labels": [0, label, 9]}
    (folder / cifar.BATCHES[0]).write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError, match=r"is not a Python batch of CIFAR-10 \(.*label") as refused:
        cifar10(folder)
    assert "\n" not in str(refused.value)


def test_cifar10_refuses_binary_batches_with_invalid_labels(tmp_path):
    folder = write_batches(tmp_path / "batches", 3)
    part = records(3, 0)
    part[2, 0] = 255
    (folder / f"{cifar.BATCHES[0]}.bin").write_bytes(part.tobytes())
    with pytest.raises(DataError, match=r"label 2 must be 0 to 9, but is 255"):
        cifar10(folder)
