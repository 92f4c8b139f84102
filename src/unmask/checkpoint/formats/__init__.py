"""Foreign layouts, one file each: a literal map of names, and what must be true of a checkpoint to be taken."""
