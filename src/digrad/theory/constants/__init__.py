"""Constants that the theory starts from: norms of the network, smoothness of the losses."""
