"""How text is corrupted and walked back: schedules, the masked process, the Gaussian latent behind it."""
