"""Engines that run a step of a method: all agents in one process, or one of them, waiting for its neighbours or not."""
