"""Side-by-side measurements: ours against the published algorithm written plainly, in one run."""
