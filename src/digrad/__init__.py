"""Decentralized optimization over directed graphs that does not blow up.

Importing this package loads nothing heavy: the names listed in ``__init__.pyi`` are imported on first use.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
