"""Orders without memory: which block comes i-th, computed from i alone.

`permuted` is a keyed permutation of 0..n-1 (a Feistel network, repeated until it lands inside), `interleave` shares a
sequence among sources in exact proportion. Both are integer arithmetic in numpy, so they give the same numbers on
every machine and in every version, in O(1) memory for any n, and can be asked for any i first.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 6
_UNIT = 32  # weights are whole multiples of 2^-32


def _mix(values: np.ndarray) -> np.ndarray:
    """A 64-bit finaliser: every input bit moves every output bit (multiplications wrap modulo 2^64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permuted(places: np.ndarray, n: int, key: int) -> np.ndarray:
    """Where a permutation of range(n), chosen by a 63-bit `key`, sends each of `places`."""
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    keys = _mix(np.uint64(key) + np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))

    def feistel(values: np.ndarray) -> np.ndarray:
        left, right = values >> half, values & low
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & low)
        return (left << half) | right

    found = feistel(places.astype(np.uint64))
    outside = found >= n
    while outside.any():  # cycle walking: the network permutes fewer than 4n values, so about 4 turns at worst
        found[outside] = feistel(found[outside])
        outside = found >= n
    return found.astype(np.int64)


def interleave(places: np.ndarray, weights: list[float]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each source the rows of `places` that are its own, and how many came to it before each.

    Source 0 takes place i when floor(w_0 i) steps up, the others share what it leaves in the same way. Among the
    first m places source j therefore has m w_j, to within the number of sources.
    """
    rows = np.arange(len(places))
    places = places.astype(np.uint64)
    shares = []
    for j, weight in enumerate(weights):
        share = round(weight / sum(weights[j:]) * (1 << _UNIT))
        before = _times(places, share)
        own = _times(places + np.uint64(1), share) > before
        shares.append((rows[own], before[own].astype(np.int64)))
        rows, places = rows[~own], (places - before)[~own]
    return shares


def _times(places: np.ndarray, share: int) -> np.ndarray:
    """floor(places * share / 2^32) without overflow."""
    unit = np.uint64(_UNIT)
    high, low = places >> unit, places & np.uint64((1 << _UNIT) - 1)
    return high * np.uint64(share) + ((low * np.uint64(share)) >> unit)
