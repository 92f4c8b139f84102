"""The causal head of a step: a small network over the positions that one step reveals, beside a frozen body."""

from unmask.models.chain.family import ChainFamily
from unmask.models.chain.network import ORDERS, ChainConfig, ChainHead, token_table
from unmask.models.chain.slots import Slots, certainty, in_slots

__all__ = ["ORDERS", "ChainConfig", "ChainFamily", "ChainHead", "Slots", "certainty", "in_slots", "token_table"]
