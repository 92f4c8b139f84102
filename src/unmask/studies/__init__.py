"""A grid of cells, its cache and resumption, the analysis and the report."""
