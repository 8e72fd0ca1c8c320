"""Specifications in the files of a package, by name: here the demo, in `digrad.paper.presets` those of the paper."""

from importlib import resources

from digrad import checks
from digrad.specs.spec import Spec, parse_spec


def preset_names(package: str = __name__) -> list[str]:
    """Return the names that :func:`preset` takes.

    Example:
        >>> preset_names()
        ['demo']
    """
    files = resources.files(package).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def preset(name: str, package: str = __name__) -> Spec:
    """Return a specification by name.

    Args:
        name: Name of the file, without its suffix.
        package: The package that holds it.

    Raises:
        ArgumentError: There is none of that name; the message suggests the nearest.

    Example:
        >>> list(preset("demo").methods)
        ['CGT', 'AB', 'DGDClip']
    """
    checks.choice(name, "name", "preset", preset_names(package))
    file = resources.files(package) / f"{name}.toml"
    return parse_spec(file.read_text(encoding="utf-8"), f"preset {name}")
