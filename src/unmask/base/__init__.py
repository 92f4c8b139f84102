"""What every room needs: errors a person can act on, atomic files, seeded streams, provenance records.

Refuses to know what a model, a corpus or a sampler is.
"""
