"""How text is corrupted and restored: schedules, masked and uniform processes, the Gaussian latent behind them."""

from unmask.processes.masked import Masked
from unmask.processes.process import PROCESSES, Pair, Process, States, View, process_named, register_process
from unmask.processes.uniform import Uniform

__all__ = ["PROCESSES", "Masked", "Pair", "Process", "States", "Uniform", "View", "process_named", "register_process"]
