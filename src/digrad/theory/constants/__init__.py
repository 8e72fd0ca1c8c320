"""What the theory takes from outside: norms of the network, smoothness of the losses."""
