from digrad.core.divergence import far_away


def test_the_limit_is_relative_to_the_start_and_at_most_what_the_dtype_holds():
    assert far_away(9.0, 1e308) == 9e12
    assert far_away(1e30, 3.4e38) == 3.4e38
