"""Certified step sizes by dissipation: a storage function that contains F and falls along every run.

The proof is section 1 of the page on the theory. ``frequency_responses`` finds the largest step size for given
curvature bounds, ``storage_function`` the quadratic form behind it and the proof that it is negative,
``curvature_bounds`` the curvature where the run can go, and ``prove_step_size`` makes the three consistent.
"""
