"""Certified step sizes by dissipation: a storage function that contains F and falls along every run.

The proof is section 1 of the page on the theory. ``responses`` finds the largest step size for given curvature bounds,
``storage`` the quadratic form behind it and the proof that it is negative, ``regions`` the curvature bounds, and
``closure`` closes the circle between the three.
"""
