"""Checkpoints of all agents that belong together, written so that none is ever half there."""
