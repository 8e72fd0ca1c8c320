"""Steps that are compiled by Numba and called from inside the compiled loop, where XLA's own are slower.

Optional: without Numba, and for whatever the tables do not name, the loop runs the method's own step. A method and a
problem have a row each; neither file knows.
"""
