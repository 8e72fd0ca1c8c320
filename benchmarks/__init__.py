"""Speed and memory of digrad on this machine; run from a checkout by ``make bench`` or ``python -m benchmarks``."""
