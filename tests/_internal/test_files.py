import os
import signal
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digrad._internal.files import file_stem, locked, locked_file, write_atomically
from digrad.errors import ArgumentError, StorageError


def test_write_atomically_replaces_content_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    assert write_atomically(path, "new ü") == path
    assert path.read_bytes() == "new ü".encode()
    assert os.listdir(tmp_path) == ["a.json"]


def test_write_atomically_keeps_old_content_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    write_atomically(path, b"old")

    def full_disk(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_write_atomically_names_the_file_and_leaves_nothing_when_the_disk_is_full(tmp_path, full_disk):
    path = tmp_path / "a.bin"
    write_atomically(path, b"old")
    with (
        full_disk(after=100),
        pytest.raises(StorageError, match=r"a\.bin cannot be written \(File too large\)"),
    ):
        write_atomically(path, bytes(1000))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_locked_folder_keeps_others_out_until_it_is_released(tmp_path):
    with locked(tmp_path / "out"):
        with pytest.raises(
            ArgumentError, match=r"Another process is writing to .*out; wait until it has ended"
        ):
            locked(tmp_path / "out").__enter__()
        assert os.listdir(tmp_path / "out") == [".lock"]
    assert os.listdir(tmp_path / "out") == []
    with locked(tmp_path / "out"):
        pass


def test_locked_file_keeps_others_out_of_itself_but_not_of_its_folder(tmp_path):
    with (
        locked_file(tmp_path / "a"),
        locked_file(tmp_path / "b"),
        locked(tmp_path),
        pytest.raises(ArgumentError, match=r"Another process is writing to .*a; .* give another path"),
    ):
        locked_file(tmp_path / "a").__enter__()
    assert os.listdir(tmp_path) == []


def test_lock_of_a_killed_process_does_not_count(tmp_path):
    (tmp_path / ".lock").write_text("")
    with locked(tmp_path):
        assert os.listdir(tmp_path) == [".lock"]


def test_write_atomically_gives_the_permissions_of_an_ordinary_file(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.write_bytes(b"")
    path = write_atomically(tmp_path / "atomic", b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_write_atomically_raises_when_folder_is_missing(tmp_path):
    with pytest.raises(StorageError, match=r"none/a cannot be written \(No such file or directory\)"):
        write_atomically(tmp_path / "none" / "a", b"")


@pytest.mark.parametrize("name", ["CGT", "CGT-seed0", "a.b_c-1"])
def test_file_stem_keeps_safe_names(name):
    assert file_stem(name) == name


@given(st.text(min_size=1, max_size=300))
def test_file_stem_is_safe_in_a_file_name(name):
    stem = file_stem(name)
    assert set(stem) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
    assert 0 < len(stem) < 100


def test_file_stem_separates_names_that_look_alike():
    names = ["a b", "a/b", "a_b", "a\\b", file_stem("a b"), file_stem(file_stem("a b")), "x" * 100, "x" * 101]
    assert len({file_stem(name) for name in names}) == len(names)


KILLED = """
import os, signal, sys
from digrad._internal.files import write_atomically

os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)
write_atomically(sys.argv[1], "new")
"""


@pytest.mark.parametrize(
    "begin", [lambda folder: write_atomically(folder / "b", ""), lambda folder: locked(folder).__enter__()]
)
def test_what_a_killed_writer_left_goes_when_the_next_begins(tmp_path, begin):
    (tmp_path / "a").write_text("old")
    process = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "a"], check=False)
    assert process.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    begin(tmp_path)
    assert not list(tmp_path.glob("*.tmp"))
    assert (tmp_path / "a").read_text() == "old"


def test_temporary_file_of_a_living_writer_is_left_alone(tmp_path, monkeypatch):
    replace = os.replace

    def write_another_first(source, target):
        monkeypatch.setattr(os, "replace", replace)
        write_atomically(tmp_path / "b", "second")
        replace(source, target)

    monkeypatch.setattr(os, "replace", write_another_first)
    write_atomically(tmp_path / "a", "first")
    assert (tmp_path / "a").read_text() == "first"
    assert (tmp_path / "b").read_text() == "second"
