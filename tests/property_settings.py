"""Number of examples that property tests of whole runs try: compiling is what costs, so few in the gate."""

from hypothesis import HealthCheck, Phase, settings

EXPLORES = not getattr(settings.default, "derandomize", False)  # `make slow`


def examples(gate: int, explored: int) -> settings:
    """Return settings for so many examples; a failure is not made smaller, which would compile every attempt."""
    return settings(
        max_examples=explored if EXPLORES else gate,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
