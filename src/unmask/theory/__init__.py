"""Exact oracles and enumerated laws: what a sampler writes, computed instead of sampled."""
