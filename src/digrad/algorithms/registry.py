"""All methods that a specification may name: ours, and those that other packages announce."""

from collections.abc import Mapping

from digrad import plugins
from digrad.algorithms import METHODS

ALL_METHODS: Mapping[str, type] = plugins.WithPlugins(METHODS, plugins.METHODS)
