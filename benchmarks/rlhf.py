"""Tables and pictures of docs/rlhf.md, from results/rlhf.jsonl alone, byte for byte the same.

    python -m benchmarks.run rlhf --workers 1      39 runs
    python -m benchmarks.rlhf                      tables to the terminal and docs/rlhf.md, pictures

KL is in nats per response. Curves are smoothed over 5 updates, except the KL of a single update.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import tyro

from benchmarks.best_of_n import SIZES
from benchmarks.report import COLOURS, STYLE, check_digests, load, markdown, put_into, save
from benchmarks.run import ROOT
from benchmarks.suites import RLHF, SUITES

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LABELS = {
    "beta-0": "β = 0",
    "beta-0.03": "β = 0.03",
    "beta-0.1": "β = 0.1",
    "beta-0.3": "β = 0.3",
    "adaptive": "adaptive β, target 6 nats",
    "gold-beta-0": "trained on gold, β = 0",
    "none-beta-0.1": "no clip, β = 0.1",
    "none-beta-0": "no clip, β = 0",
    "aggressive-beta-0.1": "aggressive, β = 0.1",
    "aggressive-beta-0": "aggressive, β = 0",
    "aggressive-none-beta-0.1": "aggressive, no clip, β = 0.1",
    "aggressive-none-beta-0": "aggressive, no clip, β = 0",
}
BETAS = dict(zip(("beta-0", "beta-0.03", "beta-0.1", "beta-0.3"), COLOURS))
CELLS = dict(zip(("beta-0.1", "beta-0", "none-beta-0.1", "none-beta-0"), COLOURS))
OPTIMISERS = {
    "": "stepsize 3e-4, 4 epochs, gradient norm ≤ 1",
    "aggressive-": "stepsize 1e-3, 8 epochs, no gradient clipping",
}


@dataclass
class Args:
    """Tables and pictures of the language model's experiments."""

    results: Path = ROOT / "benchmarks" / "results"  # folder of the results
    docs: Path = ROOT / "docs"  # folder of rlhf.md, which gets the tables, and the pictures


# ------------------------------------------------------------------------------- from the results
def curves(rows: list[dict], setting: str, name: str) -> np.ndarray:
    """A TensorBoard scalar over training, in the order of the seeds: (seeds, values)."""
    found = sorted((row for row in rows if row["setting"] == setting), key=lambda r: r["seed"])
    return np.array([row["scalars"][name] for row in found])


def smooth(x: np.ndarray, width: int = 5) -> np.ndarray:
    """Means over the `width` values around each, fewer at the ends: (..., n) -> (..., n)."""
    half = width // 2
    means = [x[..., max(0, i - half) : i + half + 1].mean(-1) for i in range(x.shape[-1])]
    return np.stack(means, -1)


def fit_gold(d: np.ndarray, gain: np.ndarray) -> tuple[float, float]:
    """alpha, beta of gain = d (alpha - beta log d), Gao et al. 2022, by least squares."""
    design = np.stack([d, -d * np.log(d)], 1)
    alpha, beta = np.linalg.lstsq(design, gain, rcond=None)[0]
    return float(alpha), float(beta)


def best_of_n_kl(n) -> np.ndarray:
    """KL from the policy that is sampled to the best of its n samples: log n - (n - 1) / n."""
    n = np.asarray(n, float)
    return np.log(n) - (n - 1) / n


def label_of(rows: list[dict], setting: str) -> str:
    """A setting's name, with the number of its runs where some are missing."""
    done, total = sum(row["setting"] == setting for row in rows), len(SUITES["rlhf"].seeds)
    return LABELS[setting] + (f" ({done} of {total} seeds)" if done < total else "")


# ------------------------------------------------------------------------------------------ tables
def span(values) -> str:
    """Mean and, in brackets, lowest and highest over the seeds."""
    values = np.asarray(values)
    texts = [f"{x:.2f}".replace("-", "−") for x in (values.mean(), values.min(), values.max())]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if len(values) > 1 else texts[0]


def settings_table(rows: list[dict]) -> str:
    lines = []
    for setting, label in LABELS.items():
        seeds = sum(row["setting"] == setting for row in rows)
        if seeds == 0:
            lines.append([label, "0", *["–"] * 6])
            continue
        proxy, gold, kl = (
            smooth(curves(rows, setting, f"rollout/{name}")) for name in ("proxy", "gold", "kl_ref")
        )
        largest = curves(rows, setting, "losses/kl_old_new").max(1)
        values = (proxy[:, -1], gold[:, 0], gold.max(1), gold[:, -1], kl[:, -1], largest)
        lines.append([label, str(seeds), *map(span, values)])
    header = ["setting", "seeds", "proxy, end", "gold, start", "gold, peak", "gold, end"]
    return markdown([*header, "KL(π, π_ref), end", "largest KL(π_old, π)"], lines)


def best_of_n_table(rows: list[dict]) -> str:
    found = [curves(rows, "best-of-n", f"best_of_n/{name}") for name in ("proxy", "gold")]
    if not len(found[0]):
        return "best-of-n: not run"
    kls = best_of_n_kl(SIZES)
    lines = [
        [str(n), f"{kl:.2f}", span(proxy), span(gold)]
        for n, kl, proxy, gold in zip(SIZES, kls, found[0].T, found[1].T)
    ]
    return markdown(["best of", "KL", "proxy", "gold"], lines)


def stages_line(rows: list[dict]) -> str:
    rows = [row for row in rows if row["setting"] == "beta-0.1"]
    if not rows:
        return "stages: not run"
    accuracy = curves(rows, "beta-0.1", "stages/reward_model_accuracy")[:, 0]
    loss = curves(rows, "beta-0.1", "stages/sft_loss")[:, 0]
    eos = curves(rows, "beta-0.1", "eval/eos")[:, 0]
    return (
        f"Stages, mean [lowest, highest] of {len(rows)} seeds: cross-entropy of the SFT model on "
        f"held-out text {span(loss)} nats a token, responses that end with EOS {span(eos)}, "
        f"held-out accuracy of the reward model {span(accuracy)}."
    )


# ---------------------------------------------------------------------------------------- pictures
def draw_overoptimization(rows: list[dict], path: Path) -> None:
    """Proxy and gold against the distance from the reference, one line per setting."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 5.2), layout="constrained", sharex=True)
    drawn = {**BETAS, "gold-beta-0": COLOURS[6]}
    for axis, name in zip(axes, ("proxy", "gold")):
        for setting, colour in drawn.items():
            if not any(row["setting"] == setting for row in rows):
                continue
            distance = smooth(curves(rows, setting, "rollout/kl_ref")) ** 0.5
            values = smooth(curves(rows, setting, f"rollout/{name}"))
            for x, y in zip(distance, values):
                axis.plot(x, y, color=colour, linewidth=0.6, alpha=0.5)
            style = {"color": colour, "linewidth": 2, "label": label_of(rows, setting)}
            axis.plot(distance.mean(0), values.mean(0), "--" if "gold" in setting else "-", **style)
        best = curves(rows, "best-of-n", f"best_of_n/{name}")
        if len(best):
            x, sizes = best_of_n_kl(SIZES) ** 0.5, ", ".join(map(str, SIZES))
            axis.plot(x, best.mean(0), "o", color=COLOURS[4], label=f"best of {sizes}")
        axis.set_xlabel(r"$d = \sqrt{\mathrm{KL}(\pi, \pi_\mathrm{ref})}$, KL in nats per response")
    if any(row["setting"] == "beta-0" for row in rows):
        d = smooth(curves(rows, "beta-0", "rollout/kl_ref")).mean(0) ** 0.5
        gold = smooth(curves(rows, "beta-0", "rollout/gold")).mean(0)
        start = curves(rows, "beta-0", "eval/gold")[:, 0].mean()  # of the SFT model, d = 0
        alpha, beta = fit_gold(d, gold - start)
        x = np.linspace(0.02, d.max(), 100)
        label = f"start + d ({alpha:.2f} − {beta:.2f} log d), fitted to β = 0"
        y = start + x * (alpha - beta * np.log(x))
        axes[1].plot(x, y, ":", color="black", linewidth=1.6, label=label)
    axes[0].set_title("proxy: what the policy is paid", fontsize=11)
    axes[1].set_title("gold: what the reward model was to learn", fontsize=11)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)


def draw_two_devices(rows: list[dict], path: Path) -> None:
    """KL of each update, KL from the reference, and gold: the four cells under two optimisers."""
    figure, grid = plt.subplots(2, 3, figsize=(12, 7.2), layout="constrained", sharey="col")
    titles = {
        "losses/kl_old_new": r"KL($\pi_\mathrm{old}$, $\pi$) of one update",
        "rollout/kl_ref": r"KL($\pi$, $\pi_\mathrm{ref}$), all updates so far",
        "rollout/gold": "gold reward",
    }
    for line, (prefix, optimiser) in zip(grid, OPTIMISERS.items()):
        for axis, (name, title) in zip(line, titles.items()):
            for setting, colour in CELLS.items():
                values = curves(rows, prefix + setting, name)
                if not len(values):
                    continue
                values = values if name == "losses/kl_old_new" else smooth(values)
                style = {"color": colour, "linestyle": "--" if "none" in setting else "-"}
                clip = "" if "none" in setting else "clip, "
                for i, y in enumerate(values):
                    label = clip + LABELS[setting] if i == 0 else None
                    x = np.arange(1, len(y) + 1)
                    axis.plot(x, y, linewidth=1.2, alpha=0.85, label=label, **style)
            axis.set_title(title, fontsize=11)
            if "gold" not in name:
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter("{x:g}")
            axis.set_xlabel("update")
        line[0].set_ylabel(optimiser, fontsize=10)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    save(figure, path)


# -------------------------------------------------------------------------------------------- main
def write_report(rows: list[dict]) -> str:
    """The tables of docs/rlhf.md in Markdown, and what is missing."""
    total = len(SUITES["rlhf"].seeds) * len(RLHF)
    missing = [f"{len(rows)} of {total} runs are in."] if len(rows) < total else []
    parts = [*missing, settings_table(rows), best_of_n_table(rows), stages_line(rows)]
    return "\n\n".join(parts)


def main(args: Args) -> int:
    """Make tables and pictures; returns the exit code."""
    rows = [row for row in load(args.results, "rlhf") if row["setting"] in RLHF]
    if not rows:
        print("benchmarks.rlhf: error: no results: python -m benchmarks.run rlhf", file=sys.stderr)
        return 2
    check_digests("rlhf", rows)
    plt.rcParams.update(STYLE)
    draw_overoptimization(rows, args.docs / "rlhf-overoptimization.png")
    draw_two_devices(rows, args.docs / "rlhf-two-devices.png")
    report = write_report(rows)
    print(report)
    put_into(args.docs / "rlhf.md", "rlhf", report)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
