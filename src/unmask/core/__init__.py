"""Errors, files that are whole or absent, seeded random streams, processes and devices, provenance."""
