"""Which position is revealed when: laws of u, orders, grids, adaptive rules."""
