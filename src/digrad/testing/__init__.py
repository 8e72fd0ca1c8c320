"""Tests for methods of your own: :func:`check_method` holds one against everything that engines rely on."""

from digrad.testing.check_method import CONTRACT, ContractError, check_method

__all__ = ["CONTRACT", "ContractError", "check_method"]
