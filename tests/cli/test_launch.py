"""Options that `digrad launch` refuses before it starts anything, and those it hands to torchrun."""

import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from digrad.cli import main
from digrad.graphs import ring, write
from digrad.torch.launch import elastic_agent
from digrad.torch.transport.curve_keys import make_key, read_key


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["digrad", "launch", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return path


REFUSED = {
    "no agents": (["--agents", "0"], "0 is not in the range x>=1"),
    "how many agents": ([], "Missing option '--agents'"),
    "unknown option": (["--agent", "3"], "No such option"),
    "missing graph file": (["--agents", "3", "--graph", "absent.json"], "absent.json"),
    "wrong interface": (["--agents", "3", "--interface", "wg7"], "`interface` of launch must be one of lo"),
    "no endpoint": (["--agents", "3", "--nodes", "2"], "`endpoint` of launch is required for 2 nodes"),
    "endpoint without a port": (
        ["--agents", "3", "--nodes", "2", "--endpoint", "127.0.0.1"],
        "must be host:port, as in 10.8.0.1:29400, but got '127.0.0.1'",
    ),
    "endpoint of one machine": (
        ["--agents", "3", "--endpoint", "127.0.0.1:29400"],
        "`endpoint` of launch is for several nodes; leave it out for one",
    ),
    "endpoint in a network": (
        ["--agents", "3", "--nodes", "2", "--endpoint", "10.8.0.1:29400"],
        "where others could read, disturb or join the run; make a key with `digrad keygen FILE`",
    ),
    "key of one machine": (
        ["--agents", "3", "--key-file", "run.key"],
        "`key_file` of launch is for several nodes; leave it out for one",
    ),
    "missing key": (
        ["--agents", "3", "--nodes", "2", "--endpoint", "10.8.0.1:29400", "--key-file", "absent.key"],
        "make one with `digrad keygen absent.key`",
    ),
    "machine beyond the last": (
        ["--agents", "3", "--nodes", "2", "--endpoint", "10.8.0.1:29400", "--insecure", "--node-rank", "2"],
        "`node_rank` of launch must be",
    ),
    "endpoint with a name": (
        ["--agents", "3", "--nodes", "2", "--endpoint", f"{socket.gethostname()}:29400"],
        "use --insecure",
    ),
    "unknown host": (
        ["--agents", "3", "--nodes", "2", "--insecure", "--endpoint", "nobody.invalid:29400"],
        "names the unknown host 'nobody.invalid'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_starts_nothing(case, monkeypatch, capsys, script):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    words, message = REFUSED[case]
    code, output = call(monkeypatch, capsys, *words, script)
    assert code == 2
    assert output.err.startswith("digrad: ")
    assert output.err.count("\n") == 1
    assert message in output.err


def test_missing_torch_is_one_line_that_says_how_to_install_it(monkeypatch, capsys, script):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["digrad", "launch", "--agents", "3", str(script)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "needs PyTorch, which is not installed; install it with `pip install" in capsys.readouterr().err


def test_missing_script_is_refused(monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, "--agents", "3", tmp_path / "absent.py")
    assert code == 2
    assert "absent.py` does not exist" in output.err


@pytest.mark.parametrize("words", [["--agents", "2"], ["--epochs", "3", "--agents=2"]])
def test_options_after_the_script_are_said_to_come_before_it(words, monkeypatch, capsys, script):
    code, output = call(monkeypatch, capsys, script, *words)
    assert code == 2
    assert "Missing option '--agents'; options of launch come before the script." in output.err


def test_graph_of_another_size_is_refused(monkeypatch, capsys, script, tmp_path):
    write(ring(4), tmp_path / "graph.json")
    code, output = call(monkeypatch, capsys, "--agents", "3", "--graph", tmp_path / "graph.json", script)
    assert code == 2
    assert "has 4 agents, but 3 processes were asked for" in output.err


def test_help_shows_how_to_start_agents_on_one_machine_and_on_several(monkeypatch, capsys):
    code, output = call(monkeypatch, capsys, "--help")
    assert code in (0, None)
    assert "digrad launch --agents 5 train.py --epochs 3" in output.out
    assert "--nodes 3 --endpoint 10.8.0.1:29400 --key-file run.key" in output.out
    assert "digrad keygen run.key" in output.out


@pytest.mark.parametrize(
    ("words", "handed"),
    [
        (["--help"], ["--help"]),
        (["--agents", "7", "--graph=x", "-h"], ["--agents", "7", "--graph=x", "-h"]),
        (["--", "--folder", "run"], ["--folder", "run"]),
        (["a", "--", "b"], ["a", "--", "b"]),
    ],
)
def test_all_that_follows_the_script_is_its_own(words, handed, monkeypatch, capsys, script):
    commands = []

    class Agent:
        def __init__(self, command, **options):
            commands.append((command, options))

        def supervise(self):
            return 0

    monkeypatch.setattr(elastic_agent, "Agent", Agent)
    code, _ = call(monkeypatch, capsys, "--agents", "3", script, *words)
    assert code == 0
    ((command, options),) = commands
    assert command[command.index(str(script)) + 1 :] == handed
    assert options["agents"] == 3


@pytest.mark.parametrize(
    ("words", "interface"),
    [
        ([], "lo"),
        (["--nodes", "2", "--endpoint", "10.8.0.1:29400", "--insecure"], None),
        (["--nodes", "2", "--endpoint", "10.8.0.1:29400", "--insecure", "--interface", "lo"], "lo"),
    ],
    ids=["one machine", "several", "several with an interface"],
)
def test_gloo_is_tied_to_loopback_on_one_machine_only(words, interface, monkeypatch, capsys, script):
    found = []
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    runs = SimpleNamespace(supervise=lambda: found.append(os.environ.get("GLOO_SOCKET_IFNAME")))
    monkeypatch.setattr(elastic_agent, "Agent", lambda *_, **__: runs)
    call(monkeypatch, capsys, "--agents", "3", *words, script)
    assert found == [interface]


def test_interface_without_an_address_is_refused(script, monkeypatch, capsys):
    def no_address(*_):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(fcntl, "ioctl", no_address)
    words = [
        "--agents",
        "1",
        "--nodes",
        "2",
        "--endpoint",
        "10.0.0.1:29400",
        "--interface",
        "lo",
        "--insecure",
        script,
    ]
    code, output = call(monkeypatch, capsys, *words)
    assert code == 2
    assert "`interface` of launch is 'lo', which has no IPv4 address" in output.err


def test_keygen_writes_a_secret_for_its_owner_only_and_overwrites_none(monkeypatch, capsys, tmp_path):
    path = tmp_path / "run.key"
    for code in (0, 2):
        monkeypatch.setattr("sys.argv", ["digrad", "keygen", str(path)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code or 0) == code
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path) != read_key(make_key(tmp_path / "other.key"))
    assert "is not overwritten; give another file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "text", "reason"), [(0o644, None, "can be read by others"), (0o600, "x", "must hold a key")]
)
def test_key_that_others_can_read_or_that_is_none_is_refused(
    mode, text, reason, monkeypatch, capsys, script, tmp_path
):
    path = make_key(tmp_path / "run.key")
    path.chmod(mode)
    if text is not None:
        path.write_text(text)
    words = ["--agents", "1", "--nodes", "2", "--endpoint", "10.0.0.1:29400", "--key-file", path, script]
    code, output = call(monkeypatch, capsys, *words)
    assert code == 2
    assert reason in output.err


def test_launch_is_imported_without_torch_so_that_it_can_say_what_is_missing():
    code = "import sys, digrad.torch.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
