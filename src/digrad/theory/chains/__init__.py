"""Chains of constants, from what is assumed to a certified step size."""
