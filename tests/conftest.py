"""One thread a test process: the suite already runs a process a core."""

import torch

torch.set_num_threads(1)
