"""How a step of a method is run: all agents in one process, or one of them, waiting for its neighbours or not."""
