"""What both runtimes share: the net, hyper-parameters at iteration k, averages, traffic, validation."""
