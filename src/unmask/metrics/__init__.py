"""Scores of tokens, texts and log-probabilities, each with its count and its interval."""
