"""Numbers and tables as people read them."""

from collections.abc import Iterable, Sequence
from typing import Any


def shown(value: Any, digits: int = 4, *, absent: str = "") -> str:
    """Return a number with few significant digits, a whole one with all of them, and anything else as text.

    Args:
        value: None and NaN count as absent.
        digits: Significant ones.
        absent: The text for a value that is not there.

    Example:
        >>> shown(0.00123456), shown(12345.0), shown(1e9), shown(None, absent="never"), shown("CGT")
        ('0.001235', '12345', '1e+09', 'never', 'CGT')
    """
    if value is None or value != value:
        return absent
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e6 else f"{value:.{digits}g}"


def byte_unit(largest: float) -> tuple[int, str]:
    """Return the divisor and the name of the unit in which ``largest`` bytes read well.

    Example:
        >>> byte_unit(1_200_000)
        (1000000, 'MB')
    """
    units = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
    return next((unit for unit in units if largest >= unit[0]), (1, "B"))


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits.

    Example:
        >>> size(1_234_567)
        '1.23 MB'
    """
    divisor, unit = byte_unit(count)
    return f"{count / divisor:.3g} {unit}"


def duration(seconds: float) -> str:
    """Return seconds in the two units that fit.

    Example:
        >>> duration(4), duration(125), duration(7300)
        ('4 s', '2 min 5 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown.

    Example:
        >>> markdown_table(("method", "loss"), [("CGT", "0.1")])
        ['| method | loss |', '|---|---|', '| CGT | 0.1 |']
    """
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return [first, "|" + "---|" * len(head), *others]
