"""Records of runs: :class:`Trace` for one run, :class:`Ensemble` for one method under several seeds.

Both are saved as Parquet and JSON, readable without digrad, and load back bit for bit.
"""

from digrad.trace.ensemble import Ensemble
from digrad.trace.trace import Trace, Verdict, is_stalled, results_table

__all__ = ["Ensemble", "Trace", "Verdict", "is_stalled", "results_table"]
