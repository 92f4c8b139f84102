"""A model made ready to run: copied, cast, folded, compiled."""
