"""The methods of digrad as torch optimizers: n replicas in one process, or one process per agent.

Names are imported on first use, so that ``digrad launch`` starts without loading torch itself.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
