"""MDLM's DiT: the network, its published files, its folded twin for inference."""

from unmask.models.dit.family import DiTFamily
from unmask.models.dit.network import PRESETS, DiT, DiTConfig

__all__ = ["PRESETS", "DiT", "DiTConfig", "DiTFamily"]
