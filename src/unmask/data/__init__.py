"""From text to batches: tokenizers, packed shards of tokens, and a loader that can start at any step.

Refuses to know models, devices and processes: whoever calls the loader says which rows it wants, as numbers.
"""
