"""LLaDA: LLaDA-8B Base and Instruct, LLaDA-1.5, iLLaDA."""

from unmask.models.llada.family import PRESETS, LLaDA, LLaDAFamily

__all__ = ["PRESETS", "LLaDA", "LLaDAFamily"]
