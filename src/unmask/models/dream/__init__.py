"""Dream: Dream-7B, Dream-Coder, DiffuCoder."""

from unmask.models.dream.family import PRESETS, Dream, DreamFamily

__all__ = ["PRESETS", "Dream", "DreamFamily"]
