"""Denoisers, the families they belong to, and the families that come with the package."""

from unmask.models import dit, llada
from unmask.models.family import FAMILIES, Family, family_named, family_of, register_family

__all__ = ["FAMILIES", "Family", "dit", "family_named", "family_of", "llada", "register_family"]
