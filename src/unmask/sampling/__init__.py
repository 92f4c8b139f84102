"""Sampling: which positions are revealed when, the exact draw, and the one loop that runs them."""
