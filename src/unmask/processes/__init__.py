"""How text is corrupted and restored: schedules, the masked process, the Gaussian latent behind it."""

from unmask.processes.masked import Masked
from unmask.processes.process import PROCESSES, Pair, Process, States, View, process_named, register_process

__all__ = ["PROCESSES", "Masked", "Pair", "Process", "States", "View", "process_named", "register_process"]
