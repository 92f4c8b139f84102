"""SDAR: block diffusion with an exact cache of keys and values."""

from unmask.models.sdar.family import PRESETS, SDAR, SDARConfig, SDARFamily

__all__ = ["PRESETS", "SDAR", "SDARConfig", "SDARFamily"]
