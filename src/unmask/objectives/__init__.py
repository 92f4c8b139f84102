"""What training minimises: small callables, objective(student, batch, step=..., generator=...) -> LossOutput.

Each can be tested without the training loop.
"""
