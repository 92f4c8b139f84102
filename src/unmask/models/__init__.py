"""The denoiser and its network: from masked tokens to a distribution over clean ones.

Refuses to know schedules, corpora, files and processes.
"""
