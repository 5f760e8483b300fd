"""Random networks, and what must hold for each of them."""
