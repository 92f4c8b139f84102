"""The paper's two figures, made from real draws: the latent paths and their two shadows, and u against gamma.

The masked shadow of a latent is whether the token's coordinate is the largest, the uniform shadow which one is.

One sentence of L tokens gets one fixed noise in K dimensions a token. The bottom panel shows all of them, the top
panels follow one. Shapes: L tokens, K states, T times.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from unmask.core.show import FADED, INK, STYLE, save_figure
from unmask.core.streams import stream
from unmask.processes.gaussian import GaussianDuality
from unmask.processes.schedule import Schedule

SENTENCE = ("what", "falls", "on", "the", "wall", "is", "only", "the", "shadow", "of", "one", "fixed", "noise")
S, T = 0.35, 0.65  # the times of the teacher's and the student's view
STRONGEST = 5  # rivals shown in colour

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#9aa0a6"
VIEWS = ((S, "s", "#6a3d9a"), (T, "t", "#c2185b"))  # time, its letter, its colour
REGIONS = {
    "identity": (GREY, "identity: both see it"),
    "reconstruct": (GREEN, "reconstruction: only the teacher sees it"),
    "distil": (ORANGE, "distillation: neither sees it"),
}


@dataclass(frozen=True)
class Scene:
    """Everything that is drawn; computed first, so that drawing is only drawing."""

    duality: GaussianDuality
    schedule: Schedule
    eps_LK: Tensor
    k_L: Tensor
    u_L: Tensor
    star: int  # the token the top panels follow

    def gamma(self, time: float) -> float:
        return float(self.schedule.gamma(torch.tensor(time, dtype=torch.float64)))

    def latent(self, time: float) -> Tensor:
        """w at one time, (L, K)."""
        return self.duality.latent(self.eps_LK, self.k_L, self.duality.calibrate(self.gamma(time), signed=True))

    def argmax(self, time: float) -> Tensor:
        """The uniform shadow of every token at one time, (L)."""
        return self.latent(time).argmax(-1)

    def seen(self, time: float) -> Tensor:
        """Which tokens are visible at one time, by projection of the full latent, not by u. (L)"""
        return self.duality.project(self.latent(time), self.k_L)


def draw_figure(path: Path, duality: GaussianDuality, schedule: Schedule, u_N: Tensor, seed: int) -> None:
    """Draw and write the figure; u_N are the simulation's draws of u, shown as the empirical law of Y."""
    scene = compose(duality, schedule, seed)
    with rc_context(STYLE):
        figure = Figure(figsize=(13, 8.6), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=[1.15, 1], hspace=0.05)
        top, bottom = halves
        paths, at_s, at_t, law = top.subplots(1, 4, width_ratios=[2.1, 0.85, 0.85, 1.7])
        _draw_paths(paths, scene)
        _draw_projections([at_s, at_t], scene)
        _draw_law(law, scene, u_N)
        _draw_sentence(bottom.subplots(), scene)
        title = (
            f"One Gaussian, two shadows: one fixed noise in K = {duality.K:,} dimensions per token "
            f"({schedule.name.replace('_', '-')} schedule, seed {seed})"
        )
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold")
        save_figure(figure, path)


def compose(duality: GaussianDuality, schedule: Schedule, seed: int) -> Scene:
    """The draws of the figure; the top panels follow a token that is lost midway between s and t, if there is one."""
    L, K = len(SENTENCE), duality.K
    generator = stream(seed, "duality figure")
    eps_LK = torch.randn(L, K, generator=generator, dtype=torch.float64)
    k_L = torch.randint(K - 1, (L,), generator=generator)
    u_L = duality.u_of_noise(eps_LK, k_L)
    between = schedule.gamma(torch.tensor([S, T], dtype=torch.float64)).mean()
    return Scene(duality, schedule, eps_LK, k_L, u_L, int((u_L - between).abs().argmin()))


def _rivals(scene: Scene, count: int) -> tuple[list[int], list[int]]:
    """The strongest rivals of the followed token, strongest first, and an even sample of `count` others."""
    eps_K = scene.eps_LK[scene.star].clone()
    eps_K[scene.k_L[scene.star]] = -torch.inf
    order = eps_K.argsort(descending=True).tolist()[:-1]
    others = order[STRONGEST:]
    return order[:STRONGEST], others[:: max(1, len(others) // count)]


def _draw_paths(axes: Any, scene: Scene) -> None:
    """w over time: the token starts at 1, its rivals spread from 0, until one of them overtakes it."""
    t_T = torch.linspace(1e-4, 1, 500, dtype=torch.float64)
    path = scene.duality.calibrate(scene.schedule.gamma(t_T), signed=True)
    eps_K, own = scene.eps_LK[scene.star], int(scene.k_L[scene.star])
    strongest, others = _rivals(scene, 60)
    for j in others:
        axes.plot(t_T, path.sigma * eps_K[j], color=GREY, lw=0.5, alpha=0.45)
    for j in reversed(strongest):
        first = j == strongest[0]
        axes.plot(t_T, path.sigma * eps_K[j], color=ORANGE, lw=2.2 if first else 1, alpha=1 if first else 0.5)
    token_T = path.alpha + path.sigma * eps_K[own]
    lost = float(scene.schedule.inverse(scene.u_L[scene.star]).clamp(max=1))
    alive_T = t_T <= lost
    axes.plot(t_T[alive_T], token_T[alive_T], color=BLUE, lw=3)
    axes.plot(t_T[~alive_T], token_T[~alive_T], color=BLUE, lw=2, ls=(0, (2, 1.5)))
    axes.plot(lost, token_T[alive_T][-1], "o", ms=10, mfc="white", mec=INK, mew=1.6, zorder=5)
    axes.axvspan(0, lost, color=BLUE, alpha=0.07, lw=0)
    axes.axvspan(lost, 1, color=GREY, alpha=0.16, lw=0)
    near_T = t_T < 0.93  # the last moments run away from the scale of all others
    high = max(float((path.sigma * eps_K[strongest[0]])[near_T].max()), float(token_T.max()))
    low = min(float((path.sigma * eps_K.min())[near_T].min()), float(token_T[near_T].min()))
    axes.set(xlim=(0, 1), ylim=(low - 0.2 * (high - low), high + 0.08 * (high - low)), xlabel="time t")
    axes.set(ylabel="latent coordinates w", title=f"Latent paths of “{SENTENCE[scene.star]}”, outlined below")
    on_top = {"transform": axes.get_xaxis_transform(), "weight": "bold"}
    for time, letter, colour in VIEWS:
        axes.axvline(time, color=colour, ls="--", lw=1.2)
        axes.text(time + 0.012, 0.975, letter, color=colour, va="top", fontsize=12, **on_top)
    axes.text(min(lost, S) / 2, 0.04, f"visible: {SENTENCE[scene.star]}", color=BLUE, ha="center", **on_top)
    both = f"masked: [M]\nuniform: {_number(strongest[0])}"
    axes.text((max(lost, T) + 1) / 2, 0.03, both, color=FADED, ha="center", fontsize=9, **on_top)
    for name, colour in {"the token": BLUE, "its strongest rivals": ORANGE, "other coordinates": GREY}.items():
        axes.plot([], [], color=colour, lw=2.5, label=name)
    axes.legend(fontsize=8.5, loc="lower left", bbox_to_anchor=(0, 0.09), frameon=True, edgecolor="none")


def _draw_projections(both: list[Any], scene: Scene) -> None:
    """All coordinates of w at s and at t: the token survives iff it is above every rival."""
    strongest, others = _rivals(scene, 900)
    own = int(scene.k_L[scene.star])
    for axes, (time, letter, colour) in zip(both, VIEWS, strict=True):
        w_K = scene.latent(time)[scene.star]
        axes.plot(others, w_K[others], ".", ms=2, color=GREY, alpha=0.5, rasterized=True)
        axes.plot(strongest, w_K[strongest], "o", ms=4, color=ORANGE, alpha=0.8)
        axes.axhline(float(w_K[strongest[0]]), color=ORANGE, lw=1, ls=":")
        axes.plot(own, w_K[own], "*", ms=15, color=BLUE, mec="white", mew=0.8, zorder=5)
        survives = bool(scene.duality.project(w_K, own))
        verdict = f"both: {SENTENCE[scene.star]}" if survives else f"[M], {_number(int(w_K.argmax()))}"
        axes.set_title(f"w at {letter}  →  {verdict}", color=colour)
        axes.set(xlabel="state j", xticks=[0, scene.duality.K - 1])
    limits = [limit for axes in both for limit in axes.get_ylim()]
    for axes in both:
        axes.set_ylim(min(limits), max(limits))
    both[0].set_ylabel("w$^{(j)}$")
    both[1].set_yticklabels([])


def _draw_law(axes: Any, scene: Scene, u_N: Tensor) -> None:
    """F_Y: the noise's Y becomes u, and gamma becomes the latent's alpha/sigma."""
    duality, u = scene.duality, float(scene.u_L[scene.star])
    low, high = duality.inverse(torch.tensor([1e-4, 1 - 1e-4], dtype=torch.float64)).tolist()
    y_T = torch.linspace(low, high, 300, dtype=torch.float64)
    drawn_N = duality.inverse(u_N.clamp(min=1e-12)).sort().values
    share_N = (torch.arange(len(u_N)) + 1) / len(u_N)
    axes.step(drawn_N, share_N, color=ORANGE, lw=1.2, where="post", label=f"{len(u_N):,} draws of Y")
    law_T = duality.cdf(y_T)
    axes.plot(y_T, law_T, color=INK, lw=1.6, label="F, by quadrature")
    kept_T = (duality.K * law_T - 1) / (duality.K - 1)
    axes.plot(y_T, kept_T, color=GREEN, lw=1.6, ls=(0, (4, 3)), label="α, uniform")
    for time, letter, colour in VIEWS:
        gamma, ratio = scene.gamma(time), float(duality.calibrate(scene.gamma(time), signed=True).ratio)
        axes.plot([low, ratio, ratio], [gamma, gamma, 0], color=colour, ls="--", lw=1.2)
        axes.text(low, gamma + 0.01, rf" $\gamma_{letter}$", color=colour, va="bottom", fontsize=12)
    Y = float(duality.inverse(max(u, 1e-12)))
    axes.plot([Y, Y, low], [0, u, u], color=BLUE, lw=1.6)
    axes.text(low, u + 0.01, " u", color=BLUE, va="bottom", weight="bold", fontsize=11)
    axes.plot(Y, u, "*", ms=14, color=BLUE, mec="white", zorder=5)
    axes.set(xlim=(low, high), ylim=(0, 1), xlabel="y:  Y of the noise,  α̃/σ̃ of the latent", ylabel="F(y)")
    axes.set_title("u = F(Y)  and  γ = F(α̃/σ̃)")
    axes.legend(fontsize=8, loc="upper left", frameon=True, edgecolor="none")


def _draw_sentence(axes: Any, scene: Scene) -> None:
    """u of every token against gamma_t and gamma_s, both shadows of the two views, the three regions of MCD's loss."""
    L = len(SENTENCE)
    by_teacher_L, by_student_L = scene.seen(S), scene.seen(T)
    for i in range(L):
        region = "identity" if by_student_L[i] else "reconstruct" if by_teacher_L[i] else "distil"
        axes.bar(i, float(scene.u_L[i]), width=0.72, color=REGIONS[region][0], alpha=0.6)
    axes.bar(scene.star, float(scene.u_L[scene.star]), width=0.72, color="none", edgecolor=BLUE, lw=2.6, zorder=3)
    masked_L = ["[M]"] * L
    _draw_view(axes, -0.2, "masked  $z_s$", by_teacher_L, masked_L)
    _draw_view(axes, -0.39, "masked  $z_t$", by_student_L, masked_L)
    for y, (time, letter, _) in zip((-0.62, -0.81), VIEWS, strict=True):
        other_L = scene.argmax(time)
        _draw_view(axes, y, f"uniform  $z_{letter}$", other_L == scene.k_L, [_number(j) for j in other_L.tolist()])
    for time, letter, colour in VIEWS:
        gamma = scene.gamma(time)
        axes.plot([-0.6, L - 0.5], [gamma, gamma], color=colour, ls="--", lw=1.4)
        axes.text(L - 0.45, gamma, rf"$\gamma_{letter}$ = {gamma:.2f}", color=colour, va="center", fontsize=11)
    handles = [axes.bar(0, 0, color=colour, alpha=0.6, label=label) for colour, label in REGIONS.values()]
    axes.legend(handles=handles, ncols=3, loc="lower center", bbox_to_anchor=(0.5, -0.11))
    axes.set(xlim=(-0.6, L), ylim=(-1.02, 1), yticks=[0, 0.5, 1], xticks=[])
    axes.set_ylabel("u", rotation=0, y=0.75)
    axes.set_title(
        "One u per token decides both views of both processes: itself iff u < γ, else [M], or the one strongest rival"
    )
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_bounds(0, 1)


def _number(state: int) -> str:
    """A state that is no word of the sentence."""
    return f"#{state}"


def _draw_view(axes: Any, y: float, label: str, seen_L: Tensor, lost_L: list[str]) -> None:
    axes.text(-0.75, y, label, ha="right", va="center", weight="bold")
    for i, (word, seen, lost) in enumerate(zip(SENTENCE, seen_L.tolist(), lost_L, strict=True)):
        face, edge, ink = ("#dcecf6", BLUE, "#004b78") if seen else ("#f0f0f0", "#c4c4c4", FADED)
        shape = "round,pad=0,rounding_size=0.03"
        axes.add_patch(FancyBboxPatch((i - 0.4, y - 0.08), 0.8, 0.16, boxstyle=shape, fc=face, ec=edge, lw=0.9))
        shown, weight = (word, "bold") if seen else (lost, "normal")
        axes.text(i, y, shown, ha="center", va="center", fontsize=9, color=ink, weight=weight)
