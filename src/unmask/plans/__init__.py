"""Which position is revealed when: laws of u, orders, grids, adaptive rules."""

from unmask.plans import published  # noqa: F401  registers its plans
