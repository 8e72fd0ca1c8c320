"""Every inequality of the theory, evaluated along a run."""
