"""The settings of the paper's experiments, as specifications by name."""

from digrad.specs import presets
from digrad.specs.spec import Spec


def preset_names() -> list[str]:
    """Return the names that :func:`preset` takes.

    Example:
        >>> preset_names()[:2]
        ['cifar-dirichlet', 'cifar-explosion']
    """
    return presets.preset_names(__name__)


def preset(name: str) -> Spec:
    """Return a setting by name, as :func:`digrad.specs.preset` does."""
    return presets.preset(name, __name__)
