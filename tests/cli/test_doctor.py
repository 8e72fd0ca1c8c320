"""Report of ``digrad doctor`` about a machine."""

import json

from click.testing import CliRunner

from digrad.cli.main import digrad


def findings(*arguments):
    result = CliRunner().invoke(digrad, ["doctor", "--json", *arguments])
    return result.exit_code, {row["subject"]: row for row in json.loads(result.stdout)}


def test_doctor_names_versions_devices_and_data():
    code, found = findings()
    assert code == 0
    assert {"python", "jax", "cores", "jax devices", "cache", "data a9a", "data digits"} <= set(found)
    assert found["data digits"]["fix"] == ""


def test_doctor_tells_the_command_that_fetches_missing_data(monkeypatch, tmp_path):
    monkeypatch.setenv("DIGRAD_CACHE", str(tmp_path))
    monkeypatch.setenv("DIGRAD_DATA", str(tmp_path / "nowhere"))
    code, found = findings()
    assert code == 0
    assert found["data a9a"]["fix"] == "digrad data get a9a"
    assert found["DIGRAD_DATA"]["fix"] == "set it to the folder of your data, or unset it"


def test_doctor_reports_a_cache_that_cannot_be_written(monkeypatch):
    monkeypatch.setenv("DIGRAD_CACHE", "/proc/digrad")
    _, found = findings()
    assert found["cache"]["fix"] == "set DIGRAD_CACHE to a folder of yours"


def test_doctor_fails_when_a_package_is_missing_that_digrad_needs(monkeypatch):
    import importlib.metadata

    version = importlib.metadata.version

    def without_scipy(name):
        if name == "scipy":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_scipy)
    code, found = findings()
    assert code == 1
    assert found["scipy"]["fix"] == "pip install scipy"


def test_doctor_tells_the_command_that_installs_each_extra(monkeypatch):
    import importlib.metadata

    version = importlib.metadata.version

    def bare(name):
        if name in ("torch", "safetensors", "optax", "lightning"):
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", bare)
    code, found = findings()
    assert code == 0
    for name, extra in {
        "torch": "torch",
        "safetensors": "torch",
        "optax": "optax",
        "lightning": "trainers",
    }.items():
        assert found[f"{name} ({extra})"]["fix"] == f"pip install 'digrad[{extra}]'"
    shown = CliRunner().invoke(digrad, ["doctor"]).stdout
    assert "pip install 'digrad[torch]'" in shown  # brackets are text
