"""A few of the cases of `python tests/bits.py --compare tests/bits.json`, which compares all of them."""

import json

import pytest

import bits

SOME = (
    "CGT full float64",
    "CGT batch float32 resumed",
    "SGP full float64",
    "CGT delay",
    "CGT random edges",
    "CGT leave and join",
)


@pytest.mark.parametrize("name", SOME)
def test_numbers_are_those_of_the_reference_to_rounding(name):
    known = json.loads(bits.REFERENCE.read_text())["cases"][name.removesuffix(bits.RESUMED)]
    found = bits.record(bits.cases()[name]())
    gaps = bits.differences(known, found, bitwise=False, tolerance=bits.tolerance_of(name))
    assert not {column: gap for column, gap in gaps.items() if (name, column) not in bits.CHANGED}
