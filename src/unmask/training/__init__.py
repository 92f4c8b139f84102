"""One loop for everything that is trained: the engine, its optimiser, its state on disk, what it reports.

Refuses to know any loss: objectives come in from outside.
"""
