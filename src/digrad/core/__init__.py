"""Shared parts of both runtimes: the net, hyper-parameters at iteration k, averages, traffic, validation."""
