"""One loop for everything that is trained: its options, its optimiser, its state on disk, what it reports."""
