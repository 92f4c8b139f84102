"""Many processes: the only place that knows torch.distributed.

Refuses to know models, data and objectives: it wraps the modules it is handed and stores the tensors it is given.
"""
