"""`unmask duality`: the Gaussian-discrete duality in numbers and a figure, from real draws.

The latent has two shadows: the masked process asks whether the token's coordinate is the largest, the uniform process
which one is. The full K-dimensional latent and the rules without it (u < gamma; else the one strongest rival) are run
on the same noise and must agree draw for draw, in both.
Shapes: G gammas, N draws, K states with the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor

from unmask.core.errors import UserError
from unmask.core.progress import Progress
from unmask.core.provenance import record
from unmask.core.show import check_figure, table
from unmask.core.streams import stream
from unmask.processes.gaussian import GaussianDuality
from unmask.processes.masked import is_masked
from unmask.processes.schedule import Schedule, schedule_named

TIMES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)  # of the schedule, for the rows nobody chose
MOST_STATES = 1_000_000  # a latent is simulated whole; the library's GaussianDuality has no such limit
_CHUNK = 2**20  # latent coordinates at a time: 8 MB


@dataclass(frozen=True)
class Outcome:
    """The rules at one gamma, on the same draws."""

    gamma: float
    survived: int  # by the projection of the full latent
    survived_scalar: int  # by u < gamma
    disagreements: int  # draws on which the two rules differ
    argmax_is_token: int  # draws whose latent has its largest coordinate at the token
    argmax_disagreements: int  # draws whose argmax is not the token if u < gamma, else the strongest rival of the noise
    deviation: float  # share survived - gamma
    standard_error: float  # of that share, if the marginal is exactly gamma
    z: float
    nearest_tie: float  # least |u - gamma|; rounding could only decide below about 1e-14


def calibration_table(duality: GaussianDuality, schedule: Schedule, gammas: Sequence[float]) -> list[dict[str, Any]]:
    """The signed calibration of each gamma; below 1/K alpha is negative, below the schedule's last value t is None."""
    gamma = torch.tensor(gammas, dtype=torch.float64)
    found = duality.calibrate(gamma, signed=True)
    uniform = (duality.K * gamma - 1) / (duality.K - 1)  # the argmax is the token as often as it survives
    columns = (schedule.inverse(gamma), gamma, found.ratio, found.alpha, found.sigma, uniform)
    return [
        {
            "t": t if gamma >= schedule.eps else None, "gamma": gamma, "ratio": ratio, "alpha": alpha, "sigma": sigma,
            "uniform_alpha": uniform if uniform >= 0 else None, "below_one_over_K": gamma < 1 / duality.K,
        }
        for t, gamma, ratio, alpha, sigma, uniform in zip(*(column.tolist() for column in columns), strict=True)
    ]  # fmt: skip


def draw_noise(K: int, seed: int, draws: range) -> tuple[Tensor, Tensor]:
    """(eps, k): noise (N, K) and a token that is not the mask (N,). Draw i is the same whatever its company."""
    streams = [stream(seed, "duality", i) for i in draws]
    k_N = torch.stack([torch.randint(K - 1, (), generator=generator) for generator in streams])
    eps_NK = torch.stack([torch.randn(K, generator=generator, dtype=torch.float64) for generator in streams])
    return eps_NK, k_N


def simulate(
    duality: GaussianDuality, gammas: Sequence[float], draws: int, seed: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[list[Outcome], Tensor]:  # fmt: skip
    """Every gamma on the same draws, (outcomes, u_N): project the latent w in K dimensions, compare u with gamma."""
    if draws < 1:
        raise UserError(f"--draws must be at least 1, not {draws}")
    calibrations = [duality.calibrate(gamma, signed=True) for gamma in gammas]
    parts = []
    at_once = max(1, _CHUNK // duality.K)
    for start in range(0, draws, at_once):
        if progress:
            progress(f"latents in {duality.K:,} dimensions", start, draws)
        eps_NK, k_N = draw_noise(duality.K, seed, range(start, min(start + at_once, draws)))
        latents = [duality.latent(eps_NK, k_N, calibration) for calibration in calibrations]
        rival_N = eps_NK.scatter(1, k_N[:, None], -math.inf).argmax(-1)
        survives, argmax = [duality.project(w_NK, k_N) for w_NK in latents], [w_NK.argmax(-1) for w_NK in latents]
        parts.append((torch.stack(survives), torch.stack(argmax), duality.u_of_noise(eps_NK, k_N), rival_N, k_N))
    survives_GN, argmax_GN, u_N, rival_N, k_N = (torch.cat(several, dim=-1) for several in zip(*parts, strict=True))
    shadows = zip(gammas, survives_GN, argmax_GN, strict=True)
    return [_outcome(*shadow, ~is_masked(u_N, shadow[0]), u_N, rival_N, k_N) for shadow in shadows], u_N


def _outcome(
    gamma: float, projected_N: Tensor, argmax_N: Tensor, scalar_N: Tensor, u_N: Tensor, rival_N: Tensor, k_N: Tensor
) -> Outcome:
    N, survived = len(u_N), int(projected_N.sum())
    deviation, standard_error = survived / N - gamma, math.sqrt(gamma * (1 - gamma) / N)
    return Outcome(
        gamma=gamma, survived=survived, survived_scalar=int(scalar_N.sum()),
        disagreements=int((projected_N != scalar_N).sum()), argmax_is_token=int((argmax_N == k_N).sum()),
        argmax_disagreements=int((argmax_N != k_N.where(scalar_N, rival_N)).sum()),
        deviation=deviation, standard_error=standard_error, z=deviation / standard_error,
        nearest_tie=float((u_N - gamma).abs().min()),
    )  # fmt: skip


def duality(
    *,
    states: int = 50258,
    schedule: Literal["log_linear", "cosine"] = "log_linear",
    gamma: list[float] | None = None,
    draws: int = 1000,
    seed: int = 0,
    figure: Path | None = None,
    json: bool = False,
) -> None:
    """Show the Gaussian-discrete duality: one Gaussian latent in K dimensions, and its two shadows.

    Masking a token is projecting the latent, replacing it by another is taking the argmax. Prints both calibrations,
    runs the full latent and the rules without it on the same noise, counts where they disagree (nowhere), compares
    the marginals with gamma, and draws a figure of it.

    Args:
        states: K, the number of states: the tokens and the mask
        schedule: the schedule gamma(t) of the default rows and of the figure
        gamma: probabilities that a token survives (default: the schedule at eight times)
        draws: how many latents to simulate
        seed: names the noise
        figure: where to write the figure: a .png, .svg or .pdf (default: duality.png, but none with --json)
        json: print one JSON object instead of tables
    """
    if figure is None and not json:
        figure = Path("duality.png")
    check_figure(figure)
    law = GaussianDuality(states)
    if states > MOST_STATES:
        raise UserError(f"--states {states} is too many to simulate: at most {MOST_STATES}")
    through_time = schedule_named(schedule)
    gammas = gamma or through_time.gamma(torch.tensor(TIMES, dtype=torch.float64)).tolist()
    calibration = calibration_table(law, through_time, gammas)
    with Progress(transient=True) as progress:
        outcomes, u_N = simulate(law, gammas, draws, seed, progress.show)
    if figure is not None:
        from unmask.cli.duality_figure import draw_figure  # matplotlib alone takes a second

        draw_figure(figure, law, through_time, u_N, seed)
    report: dict[str, Any] = {
        "states": states, "schedule": schedule, "draws": draws, "seed": seed, "calibration": calibration,
        "simulation": [asdict(outcome) for outcome in outcomes],
        "disagreements": sum(outcome.disagreements + outcome.argmax_disagreements for outcome in outcomes),
        "nearest_tie": min(outcome.nearest_tie for outcome in outcomes),
        "figure": None if figure is None else str(figure),
    }  # fmt: skip
    if json:
        print(dumps(report | {"provenance": record()}, indent=2))
    else:
        _print_tables(report)


def _print_tables(report: dict[str, Any]) -> None:
    calibration = [
        ["-" if row["t"] is None else f"{row['t']:.4g}", f"{row['gamma']:.6g}", f"{row['ratio']:+.6f}",
         f"{row['alpha']:+.6f}", f"{row['sigma']:.6f}",
         "-" if row["uniform_alpha"] is None else f"{row['uniform_alpha']:.6g}",
         "below 1/K: α̃ < 0" if row["below_one_over_K"] else ""]
        for row in report["calibration"]
    ]  # fmt: skip
    both = [
        [f"{row['gamma']:.4g}", f"{row['survived']:,}", f"{row['survived_scalar']:,}", f"{row['argmax_is_token']:,}",
         f"{row['disagreements'] + row['argmax_disagreements']}", f"{row['deviation']:+.4f}",
         f"{row['standard_error']:.4f}", f"{row['z']:+.2f}"]
        for row in report["simulation"]
    ]  # fmt: skip
    console = Console(highlight=False)
    title = f"Calibration: α̃/σ̃ = F⁻¹(γ), K = {report['states']:,}; uniform: α = (Kγ - 1)/(K - 1)"
    console.print(table(title, ("t", "γ", "α̃/σ̃", "α̃", "σ̃", "α uniform", ""), calibration))
    title = f"The full latent and the rules without it on the same {report['draws']:,} draws"
    heads = ("γ", "survived", "u < γ", "argmax", "differ", "share - γ", "error", "z")
    console.print(table(title, heads, both))
    if report["disagreements"]:
        console.print(f"[bold red]{report['disagreements']} disagreements: a fault of this program, please report it")
    else:
        console.print("[green]0 disagreements: the token survives, is the argmax and has u < γ in one event")
    console.print(f"nearest tie: |u - γ| = {report['nearest_tie']:.1e} (rounding could decide below about 1e-14)")
    if report["figure"]:
        console.print(f"figure: {report['figure']}", markup=False)
