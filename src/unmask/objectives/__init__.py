"""What training minimises: small callables, objective(student, batch, step=..., generator=...) -> LossOutput.

Each is testable without the engine. Refuses to know optimisers, processes, files and loops.
"""
