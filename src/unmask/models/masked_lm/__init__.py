"""Masked language models: BERT, RoBERTa, ModernBERT and their kind, fine-tuned as diffusion models."""

from unmask.models.masked_lm.family import MaskedLMConfig, MaskedLMFamily
from unmask.models.masked_lm.network import MaskedLM

__all__ = ["MaskedLM", "MaskedLMConfig", "MaskedLMFamily"]
