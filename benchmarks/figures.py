"""Figures 1 and 2 of the PPO paper, computed with ppo_continuous.py: docs/figure1.png, figure2.png.

python -m benchmarks.figures
"""

import contextlib
import io
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from matplotlib import pyplot as plt
from torch import Tensor

import ppo_continuous as script
from benchmarks.report import COLOURS, ROOT, STYLE, save

EPS = script.Args.clip_coef


@dataclass
class Args:
    """Figures 1 and 2 of the PPO paper."""

    env_id: str = "Hopper-v5"  # environment of Figure 2
    seed: int = 1  # of the run of Figure 2
    docs: Path = ROOT / "docs"  # folder of the pictures


# ---------------------------------------------------------------------------------------- figure 1
def clip_terms(ratios: Tensor, advantage: float) -> np.ndarray:
    """One sample's L^CLIP for each ratio (R,), from the script's own loss_clip -> (R,)."""
    term = torch.tensor([advantage])
    return np.array([-script.loss_clip(ratio[None], term, EPS).item() for ratio in ratios])


def draw_figure1(path: Path) -> None:
    """One term of L^CLIP against the ratio, for a positive and a negative advantage."""
    ratios = torch.linspace(0, 2, 401, dtype=torch.float64)
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for axes, advantage, bound in zip(panels, (1.0, -1.0), (1 + EPS, 1 - EPS)):
        axes.plot(ratios, clip_terms(ratios, advantage), color="black", linewidth=2)
        axes.plot(1, advantage, "o", color=COLOURS[3], markersize=8)
        axes.axvline(bound, color=COLOURS[0], linewidth=1, linestyle="--")
        axes.set_xticks([0, bound, 1, 2], ["0", "", "1", "2"])
        sign = "+" if advantage > 0 else "−"
        name = f"1 {sign} ε"
        axes.annotate(
            name,
            (bound, 0.03),
            xycoords=("data", "axes fraction"),
            color=COLOURS[0],
            ha="left" if advantage > 0 else "right",
            xytext=(4 * advantage, 0),
            textcoords="offset points",
        )
        axes.set_title(f"A {'>' if advantage > 0 else '<'} 0", fontsize=11)
        axes.set_xlabel("ratio r")
        axes.set_yticks([0, advantage], ["0", "A"])
    panels[0].set_ylabel("one term of $L^{CLIP}$")
    save(figure, path)


# ---------------------------------------------------------------------------------------- figure 2
def first_update(env_id: str, seed: int) -> tuple[script.Agent, list, list, tuple]:
    """Run ppo_continuous.py for one iteration, with its default arguments.

    Returns its agent, the parameters before and after the update, and the batch it was made from:
    observations (B, O), actions (B, A), old means (B, A), old log-probabilities (B,), old values
    (B,), advantages (B,), returns (B,); old log stds (A,).
    """
    seen = {"minibatches": []}
    original = script.train_step

    def recording_step(agent, params, minibatch, old_log_std, *rest):
        if not seen["minibatches"]:
            seen["before"] = [param.detach().clone() for param in params]
            seen["agent"], seen["params"], seen["old_log_std"] = agent, params, old_log_std.clone()
        seen["minibatches"].append(minibatch)
        return original(agent, params, minibatch, old_log_std, *rest)

    script.train_step = recording_step
    try:
        with tempfile.TemporaryDirectory() as run_dir, contextlib.redirect_stdout(io.StringIO()):
            args = script.Args(env_id=env_id, seed=seed, compile=False, run_dir=run_dir)
            args.total_timesteps = args.num_envs * args.num_steps
            script.main(args)
    finally:
        script.train_step = original
    epoch = seen["minibatches"][: args.num_steps * args.num_envs // args.minibatch_size]
    batch = (*(torch.cat(parts) for parts in zip(*epoch)), seen["old_log_std"])
    after = [param.detach().clone() for param in seen["params"]]
    return seen["agent"], seen["before"], after, batch


@torch.no_grad()
def along_the_step(agent, before: list, after: list, batch: tuple, alphas) -> dict[str, np.ndarray]:
    """The surrogates and the mean KL at before + alpha (after - before), for alphas (R,).

    Returns arrays (R,): "cpi", "clip" (objectives, to be maximised), "clipped" (its clipped term
    alone) and "kl", KL(pi_old || pi).
    """
    obs, actions, old_mean, old_logprob, _, advantages, _, old_log_std = batch
    params = [param for param in agent.parameters() if param.requires_grad]
    points = []
    for alpha in alphas:
        for param, start, end in zip(params, before, after):
            param.copy_(start + float(alpha) * (end - start))
        mean = agent.actor(obs)  # (B, A)
        ratio = (script.gaussian_logprob(actions, mean, agent.log_std) - old_logprob).exp()  # (B,)
        kl = script.gaussian_kl_old_new(old_mean, old_log_std, mean, agent.log_std)  # (B,)
        points.append(
            {
                "cpi": -script.loss_cpi(ratio, advantages).item(),
                "clip": -script.loss_clip(ratio, advantages, EPS).item(),
                "clipped": (ratio.clamp(1 - EPS, 1 + EPS) * advantages).mean().item(),
                "kl": kl.mean().item(),
            }
        )
    return {name: np.array([point[name] for point in points]) for name in points[0]}


def draw_figure2(path: Path, env_id: str, seed: int) -> dict[str, np.ndarray]:
    """The surrogates and the KL along the first update, extended; returns what is drawn."""
    alphas = np.linspace(0, 2.5, 126)
    curves = along_the_step(*first_update(env_id, seed), alphas)
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    lines = (
        ("cpi", "$L^{CPI}$ = E[ r A ]", COLOURS[1], "-"),
        ("clipped", "E[ clip(r, 1 − ε, 1 + ε) A ]", COLOURS[2], "--"),
        ("clip", "$L^{CLIP}$ = E[ min of both ]", COLOURS[3], "-"),
        ("kl", r"E[ KL($\pi_\mathrm{old}$ ‖ $\pi$) ]", COLOURS[0], ":"),
    )
    for name, label, colour, dash in lines:
        axes.plot(alphas, curves[name], dash, color=colour, linewidth=2.2, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xlim(0, alphas[-1])
    old, new = r"$\theta_\mathrm{old}$", r"$\theta_\mathrm{new}$"
    axes.set_xticks([0, 0.5, 1, 1.5, 2, 2.5], [old, "0.5", new, "1.5", "2", "2.5"])
    axes.set_ylabel("objective, KL in nats")
    axes.set_xlabel(f"α in {old} + α ({new} − {old}); first update, {env_id}")
    axes.legend(frameon=False)
    save(figure, path)
    return {"alphas": alphas, **curves}


def main(args: Args) -> int:
    """Draw both; print where L^CLIP peaks."""
    plt.rcParams.update(STYLE)
    draw_figure1(args.docs / "figure1.png")
    curves = draw_figure2(args.docs / "figure2.png", args.env_id, args.seed)
    peak, new = curves["clip"].argmax(), np.abs(curves["alphas"] - 1).argmin()
    print(
        f"figure 2, {args.env_id}, seed {args.seed}: L^CLIP peaks at α = "
        f"{curves['alphas'][peak]:.2f}; at α = 1 the KL is {curves['kl'][new]:.4f}"
    )
    print(f"wrote {args.docs / 'figure1.png'} and figure2.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
