"""Transports of bytes between agents, and how agents agree before bytes travel."""
