"""Checkpoints on disk: our own format, and the published layouts it can be read from and written to.

Nothing here executes what it reads: weights are safetensors, and a foreign pickle is read for its tensors and plain
containers only.
"""
