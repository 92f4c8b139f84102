"""From text to batches: tokenizers, packed shards of tokens, and a loader that can start at any step."""
