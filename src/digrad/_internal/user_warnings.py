"""Warnings that point at the user's line, however deep inside of digrad they are given."""

import inspect
import os
import warnings

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def warn_user(message: str) -> None:
    """Warn at the nearest line outside of digrad that led here."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
