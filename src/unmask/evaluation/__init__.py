"""How good text is, said honestly: each score with its count, its 95% interval, its unit and where it came from.

One file a score; docs/scores.md says what each is blind to. Refuses to know training, and how text was sampled beyond
what its record says.
"""
