"""Denoisers, the families they belong to, and the families that come with the package."""

from unmask.models import chain, dit, dream, llada, masked_lm, sdar
from unmask.models.family import FAMILIES, Family, family_named, family_of, register_family

__all__ = [
    "FAMILIES", "Family", "chain", "dit", "dream", "family_named", "family_of", "llada", "masked_lm", "register_family",
    "sdar",
]  # fmt: skip
