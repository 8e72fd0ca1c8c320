"""Several machines: how the launches of one run find, trust, watch and restart one another."""
