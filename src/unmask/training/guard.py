"""Guards against what a loss does not show: a student can get less diverse and less truthful while its loss falls.

At every evaluation it draws a few dozen short samples with fixed noise and compares with what it saw at the start, when
the student was still its teacher: unigram entropy, repeated n-grams, the held-out ELBO, and the product of tau, which
says how much sharpening was asked for. A bound that is crossed gives one line, or stops the run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError, unknown
from unmask.metrics.diversity import repeated
from unmask.metrics.gen_ppl import unigram_entropy
from unmask.sampling.verbs import sample

Action = Literal["warn", "stop"]
SAMPLES, LENGTH, STEPS, ORDER = 32, 64, 8, 4  # samples, tokens of each at most, steps, n of the n-grams


@dataclass(frozen=True)
class Bounds:
    """How far a student may stray.

    Guard:
        entropy_drop: nats that the unigram entropy of short samples may fall below the teacher's
        repetition_rise: how much the share of repeated 4-grams in them may rise above the teacher's
        elbo_rise: nats per token that the held-out ELBO may rise above the teacher's
        least_tau_product: how small the product of the rounds' tau may get
    """

    entropy_drop: float = 0.3
    repetition_rise: float = 0.05
    elbo_rise: float = 0.5
    least_tau_product: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise UserError(f"{field.name} is a bound: at least 0, not {getattr(self, field.name)}")

    @property
    def changed(self) -> list[str]:
        """The bounds that are not the usual ones."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


@dataclass(frozen=True)
class Look:
    """What one look found."""

    values: dict[str, float]
    crossed: dict[str, str]  # by bound: in words


class Guard:
    """Looks at a student now and then. What it sees first is what it compares with."""

    def __init__(self, action: Action = "warn", bounds: Bounds | None = None, *, seed: int = 0) -> None:
        if action not in ("warn", "stop"):
            raise unknown("guard", str(action), ("warn", "stop"))
        self.action, self.bounds, self.seed = action, bounds or Bounds(), seed
        self._first: dict[str, float] | None = None
        self._crossed_before: set[str] = set()  # bounds that were crossed at the last look

    def look(self, student: Checkpoint, *, elbo: float, tau_product: float, device: str = "auto") -> Look:
        """Draw and compare. All processes call this together."""
        length = min(LENGTH, student.model.length)
        steps, how = min(STEPS, length), {"length": length, "seed": self.seed, "device": device}
        rows = sample(student, SAMPLES, steps, **how).tokens.tolist()  # type: ignore[arg-type]
        seen = {
            "entropy": float(unigram_entropy(rows).mean()),
            "repeated": repeated(rows, max(1, min(ORDER, length - 1))).value,
            "elbo": elbo,
        }
        self._first = first = self._first or seen
        values = {"entropy": seen["entropy"], "repeated": seen["repeated"], "elbo_drift": elbo - first["elbo"]}
        return Look(values | {"tau_product": tau_product}, self._crossed(seen, first, tau_product))

    def _crossed(self, seen: dict[str, float], first: dict[str, float], tau_product: float) -> dict[str, str]:
        """The bounds that are crossed, each in words. A NaN crosses."""
        bounds, drop = self.bounds, first["entropy"] - seen["entropy"]
        gain, drift = seen["repeated"] - first["repeated"], seen["elbo"] - first["elbo"]
        changes = {
            "entropy_drop": (drop, f"sample entropy {seen['entropy']:.3f} nats is {drop:.3f} below the teacher's"),
            "repetition_rise": (gain, f"{seen['repeated']:.3f} of n-grams repeat, {gain:.3f} more than the teacher's"),
            "elbo_rise": (drift, f"ELBO {seen['elbo']:.3f} nats/token is {drift:.3f} above the teacher's"),
        }
        crossed = {name: text for name, (value, text) in changes.items() if not value <= getattr(bounds, name)}
        if not tau_product >= bounds.least_tau_product:
            crossed["least_tau_product"] = f"the product of tau is {tau_product:.3f}"
        return {name: f"{text} ({name} {getattr(bounds, name):g})" for name, text in crossed.items()}

    def news(self, look: Look) -> str | None:
        """What is new in a look: bounds crossed since the last one."""
        fresh = [text for bound, text in look.crossed.items() if bound not in self._crossed_before]
        self._crossed_before = set(look.crossed)
        return "; ".join(fresh) or None

    def to_json(self) -> dict[str, Any]:
        return {"first": self._first, "crossed": sorted(self._crossed_before)}

    def restore(self, saved: dict[str, Any] | None) -> None:
        if saved is None:
            raise UserError("this run began without a guard, which has no teacher's numbers: go on with --guard off")
        self._first, self._crossed_before = saved["first"], set(saved["crossed"])
