import bz2
import contextlib
import gzip
import hashlib
import http.server
import socket
import threading
from dataclasses import replace

import pytest

from digrad.data import list_datasets, load, locate, verify
from digrad.data.cache import LIBSVM_URL, cache_folder
from digrad.data.download import progress_bar
from digrad.data.known_datasets import KNOWN, KnownDataset
from digrad.errors import ArgumentError, DataError

TEXT = b"".join(b"%d 1:1 3:0.5\n" % (-1 if row % 3 else 1) for row in range(600))
TOY = KnownDataset("toy", "libsvm", 600, 4, "made up", hashlib.sha256(TEXT).hexdigest())


class Server(http.server.ThreadingHTTPServer):
    """A local site: ``pages`` maps a path to (status, body, claimed length or None for no Content-Length)."""

    daemon_threads = True

    def __init__(self):
        self.pages = {}
        self.requests = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/binary"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        self.server.requests.append(self.path)
        status, body, length = self.server.pages.get(self.path, (404, b"nothing", 7))
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server(cache, monkeypatch):
    """A site that data sets are downloaded from."""
    with Server() as site:
        monkeypatch.setenv("DIGRAD_LIBSVM_URL", site.url)
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.005})
        thread.start()
        yield site
        site.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, no data folder, no site, and one more data set: `toy`."""
    monkeypatch.setenv("DIGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DIGRAD_LIBSVM_URL", _closed_url())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("DIGRAD_DATA", raising=False)
    monkeypatch.setitem(KNOWN, "toy", TOY)
    return tmp_path / "cache"


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("DIGRAD_DATA", str(folder))
    return folder


def _closed_url():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def failure(name="toy", path=None):
    with pytest.raises(DataError) as caught:
        locate(name, path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_locate_prefers_the_given_path_and_does_not_verify_it(cache, data_folder, tmp_path):
    (data_folder / "toy").write_bytes(TEXT)
    own = tmp_path / "own.txt"
    own.write_bytes(b"1 1:1\n")
    assert locate("toy", own) == own
    assert load("toy", path=own).features.shape == (1, 4)


def test_locate_accepts_a_folder_as_path(cache, tmp_path):
    (tmp_path / "toy.gz").write_bytes(gzip.compress(TEXT))
    assert locate("toy", tmp_path) == tmp_path / "toy.gz"


def test_locate_does_not_replace_a_given_path_that_is_missing(cache, data_folder, tmp_path):
    (data_folder / "toy").write_bytes(TEXT)
    assert "does not exist" in failure(path=tmp_path / "absent")
    assert "holds none of toy, toy.bz2" in failure(path=tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("toy", TEXT),
        ("toy.bz2", bz2.compress(TEXT)),
        ("toy.gz", gzip.compress(TEXT)),
        ("toy.txt", TEXT),
    ],
    ids=["toy", "toy.bz2", "toy.gz", "toy.txt"],  # packed bytes hold the time, and test names must not
)
def test_locate_prefers_the_data_folder_to_the_cache(cache, data_folder, name, content):
    cache.mkdir()
    (cache / "toy").write_bytes(TEXT)
    (data_folder / name).write_bytes(content)
    assert locate("toy") == data_folder / name
    assert load("toy").features.shape == (600, 4)


def test_locate_names_file_and_both_hashes_when_the_data_folder_has_another_text(cache, data_folder):
    (data_folder / "toy.gz").write_bytes(gzip.compress(b"1 1:1\n"))
    message = failure()
    for part in (str(data_folder / "toy.gz"), TOY.sha256, hashlib.sha256(b"1 1:1\n").hexdigest()):
        assert part in message


def test_locate_refuses_a_damaged_packed_file_in_the_data_folder(cache, data_folder):
    (data_folder / "toy.bz2").write_bytes(bz2.compress(TEXT)[:40])
    assert "cannot be read" in failure()


def test_locate_prefers_the_cache_to_the_site(cache, server):
    cache.mkdir()
    (cache / "toy").write_bytes(TEXT)
    assert locate("toy") == cache / "toy"
    assert server.requests == []


@pytest.mark.parametrize("length", [len(TEXT), None])
def test_locate_downloads_into_the_cache_once(cache, server, length):
    server.pages["/binary/toy"] = (200, TEXT, length)
    calls = []
    for _ in range(2):
        path = locate("toy", progress=lambda done, total: calls.append((done, total)))
        assert path == cache / "toy"
    assert path.read_bytes() == TEXT
    assert server.requests == ["/binary/toy"]
    assert calls[-1] == (len(TEXT), length)
    assert [file.name for file in cache.iterdir()] == ["toy"]


def test_locate_downloads_from_the_site_of_the_environment(cache, server, monkeypatch, capfd):
    server.pages["/binary/toy"] = (200, TEXT, len(TEXT))
    monkeypatch.setenv("DIGRAD_LIBSVM_URL", server.url + "/")
    assert load("toy").n_samples == 600
    assert capfd.readouterr() == ("", "")


def test_locate_replaces_a_damaged_file_in_the_cache(cache, server):
    cache.mkdir()
    (cache / "toy").write_bytes(TEXT[:50])
    server.pages["/binary/toy"] = (200, TEXT, len(TEXT))
    assert locate("toy").read_bytes() == TEXT


def test_locate_says_why_each_of_the_four_places_failed(cache, data_folder):
    message = failure()
    for part in (
        "`path`: not given",
        f"DIGRAD_DATA: not in {data_folder}",
        f"cache: not in {cache}",
        "download: http://127.0.0.1",
        "Connection refused",
        LIBSVM_URL,
        "set DIGRAD_DATA",
    ):
        assert part in message


def test_locate_says_when_the_data_folder_is_unset_or_no_folder(cache, monkeypatch, tmp_path):
    assert "DIGRAD_DATA: not set" in failure()
    monkeypatch.setenv("DIGRAD_DATA", str(tmp_path / "absent"))
    assert "absent is not a folder" in failure()


def test_locate_says_that_the_cached_file_was_damaged_when_the_download_fails_too(cache):
    cache.mkdir()
    (cache / "toy").write_bytes(b"1 1:1\n")
    assert "toy is damaged (the SHA-256" in failure()


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ((404, b"nothing", 7), "the server answers 404 Not Found"),
        ((500, b"", 0), "the server answers 500 Internal Server Error"),
        ((200, TEXT[:100], len(TEXT)), f"the download stopped after 100 of {len(TEXT)} bytes"),
        ((200, TEXT[:100], None), hashlib.sha256(TEXT[:100]).hexdigest()),
        ((200, b"<html>", 6), "the downloaded file was removed"),
        ((200, b"", 0), "the downloaded file was removed"),
    ],
)
def test_locate_leaves_nothing_behind_when_the_download_fails(cache, server, page, reason):
    server.pages["/binary/toy"] = page
    assert reason in failure()
    assert list(cache.iterdir()) == []


def test_locate_leaves_nothing_behind_when_the_download_is_interrupted(cache, server):
    server.pages["/binary/toy"] = (200, TEXT, len(TEXT))

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locate("toy", progress=interrupt)
    assert list(cache.iterdir()) == []


def test_locate_explains_a_malformed_address(cache, monkeypatch):
    monkeypatch.setenv("DIGRAD_LIBSVM_URL", "not-an-address")
    assert "unknown url type" in failure()


def test_locate_explains_a_cache_that_cannot_be_made(cache, server):
    cache.write_text("a file in the way")
    assert "download: " in failure()
    assert server.requests == []


def test_locate_suggests_a_name(cache):
    with pytest.raises(DataError, match=r"No data set 'a9b' .* Did you mean `a9a`\?"):
        locate("a9b")


def test_cache_folder_is_the_platforms_unless_set(monkeypatch):
    monkeypatch.delenv("DIGRAD_CACHE", raising=False)
    assert "digrad" in cache_folder().parts


def test_progress_bar_is_silent_without_a_terminal():
    with progress_bar("toy") as progress:
        assert progress is None


def test_progress_bar_draws_on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar("toy") as progress:
        assert progress is not None
        progress(5, None)
        progress(10, 10)


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_load_gives_bundled_data_by_name(name):
    assert load(name).name == name


def test_load_reads_a_file_by_path(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes(TEXT)
    for source in (path, str(path)):
        data = load(source, dim=7)
        assert (data.name, data.n_samples, data.dim) == ("mine", 600, 7)


def test_load_lists_the_names_and_suggests_the_nearest():
    with pytest.raises(
        DataError, match=r"'digts'.* digits, breast_cancer, a9a, a9a\.t.*Did you mean `digits`\?"
    ):
        load("digts")


@pytest.mark.parametrize("options", [{"path": "x"}, {"dim": 3}])
def test_load_refuses_file_options_for_bundled_data(options):
    with pytest.raises(ArgumentError, match="bundled"):
        load("digits", **options)


def test_load_refuses_path_for_a_file(tmp_path):
    with pytest.raises(ArgumentError, match="`path` of load"):
        load(tmp_path / "file", path="x")


def test_list_datasets_says_where_each_is_without_downloading(cache, data_folder):
    (data_folder / "toy").write_bytes(TEXT)
    (data_folder / "a9a").write_bytes(b"1 1:1\n")
    rows = {row.name: row for row in list_datasets()}
    assert list(rows) == ["digits", "breast_cancer", "a9a", "a9a.t", "cifar10", "toy"]
    assert rows["digits"].location == "scikit-learn"
    assert rows["toy"].location == str(data_folder / "toy")
    assert (rows["a9a.t"].location, rows["a9a.t"].problem) == (None, None)
    assert rows["a9a"].location is None
    assert "SHA-256" in rows["a9a"].problem


def test_list_datasets_agrees_with_the_bundled_data():
    for row in list_datasets()[:2]:
        data = load(row.name)
        assert (row.n_samples, row.dim) == (data.n_samples, data.dim)


def test_verify_gives_the_place_and_the_hash(cache, data_folder):
    (data_folder / "toy.bz2").write_bytes(bz2.compress(TEXT))
    result = verify("toy")
    assert result.location == str(data_folder / "toy.bz2")
    assert (result.sha256, result.n_samples, result.dim) == (TOY.sha256, 600, 4)
    assert verify("digits").sha256 == load("digits").content_hash


def test_verify_says_how_to_get_what_is_not_here(cache):
    with pytest.raises(DataError, match="digrad data get toy"):
        verify("toy")


def test_verify_rejects_an_unknown_name_and_another_shape(cache, data_folder, monkeypatch):
    with pytest.raises(DataError, match="Did you mean `digits`"):
        verify("digts")
    monkeypatch.setitem(KNOWN, "toy", replace(TOY, n_samples=601))
    (data_folder / "toy").write_bytes(TEXT)
    with pytest.raises(DataError, match="must be 601 x 4"):
        verify("toy")


@pytest.mark.a9a
def test_load_finds_a9a_by_name_with_the_known_hash(a9a_folder):
    result = verify("a9a")
    assert result.sha256 == "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"
    assert (result.n_samples, result.dim) == (32561, 123)
    assert locate("a9a").parent == a9a_folder
