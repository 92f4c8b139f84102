"""The maths of masked diffusion: schedules, masking, coupled trajectories, the duality, where u comes from, times.

Torch only. Refuses to know models, files, tokenizers and configs.
"""
