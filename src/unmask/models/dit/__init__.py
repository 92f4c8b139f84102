"""MDLM's DiT: the network, and its folded twin for inference."""

from unmask.models.dit.network import PRESETS, DiT, DiTConfig

__all__ = ["PRESETS", "DiT", "DiTConfig"]
