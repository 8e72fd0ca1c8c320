"""The specifications that come with digrad: the demo and the settings of the paper."""

from importlib import resources

from digrad import checks
from digrad.specs.spec import Spec, parse_spec


def preset_names() -> list[str]:
    """Return the names that :func:`preset` takes.

    Example:
        >>> "demo" in preset_names()
        True
    """
    files = resources.files("digrad.specs.presets").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def preset(name: str) -> Spec:
    """Return a specification by name.

    Raises:
        ArgumentError: There is none of that name; the message suggests the nearest.

    Example:
        >>> list(preset("demo").methods)
        ['CGT', 'AB', 'DGDClip']
    """
    checks.choice(name, "name", "preset", preset_names())
    file = resources.files("digrad.specs.presets") / f"{name}.toml"
    return parse_spec(file.read_text(encoding="utf-8"), f"preset {name}")
