"""A head alone in bf16, which halves its size: python studies/chain/narrow.py RUN/checkpoint FOLDER"""

import sys

import torch

from unmask.checkpoint.io import save, stored

save(stored(sys.argv[1]), sys.argv[2], dtype=torch.bfloat16)
