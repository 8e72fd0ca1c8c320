"""How bytes get from one agent to another, and how agents agree before they do."""
