"""The experiments of docs/rlhf.md: what the clip bounds, what the KL penalty bounds.

    python -m benchmarks.rlhf run [--seeds 1 2 3]     train what results/rlhf.jsonl lacks
    python -m benchmarks.rlhf table                   the tables of docs/rlhf.md, from that file
    python -m benchmarks.rlhf plot                    its two pictures, from that file

One JSON line per run: its command, result.json, CPU seconds, and the curves over the updates.
Killed, it goes on where it was: a run in progress is resumed, a finished one is not repeated.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "rlhf.jsonl"
RUNS = ROOT / "runs" / "rlhf"
AGGRESSIVE = "--learning-rate 1e-3 --num-epochs 8 --max-grad-norm 0"
CELLS = {  # name: flags that differ from the script's defaults (clip, beta 0.1)
    "beta 0": "--ref-kl-coef 0",
    "beta 0.1": "",
    "no clip, beta 0": "--objective none --ref-kl-coef 0",
    "no clip, beta 0.1": "--objective none",
    "gold, beta 0": "--reward gold --ref-kl-coef 0",
    "adaptive": "--ref-kl-controller adaptive",
    "beta 0.03": "--ref-kl-coef 0.03",
    "beta 0.3": "--ref-kl-coef 0.3",
    "aggressive: beta 0": f"{AGGRESSIVE} --ref-kl-coef 0",
    "aggressive: beta 0.1": AGGRESSIVE,
    "aggressive: no clip, beta 0": f"{AGGRESSIVE} --objective none --ref-kl-coef 0",
    "aggressive: no clip, beta 0.1": f"{AGGRESSIVE} --objective none",
}
CURVES = {"proxy": "rollout/proxy", "gold": "rollout/gold", "kl_ref": "rollout/kl_ref"}
CURVES |= {"kl_old_new": "losses/kl_old_new", "beta": "charts/beta", "eos": "rollout/eos"}
BEST_OF = (1, 4, 16, 64, 256)


def load() -> list[dict]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def train(cell: str, seed: int) -> dict:
    """One run through the command line; what is kept of it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    name = f"{cell}-seed{seed}".replace(" ", "").replace(":", "-").replace(",", "-")
    run_dir = RUNS / name
    words = [*CELLS[cell].split(), "--seed", str(seed)]
    mode = ["--run-dir", str(run_dir), *words, "--stage-dir", str(RUNS / "stages")]
    if (run_dir / "config.json").exists():
        mode = ["--resume", str(run_dir)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, ROOT / "ppo_rlhf_tiny.py", *mode], check=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    curves = {
        curve: [round(event.value, 5) for event in events.Scalars(tag)]
        for curve, tag in CURVES.items()
    }
    return {
        "cell": cell,
        "seed": seed,
        "command": " ".join(["python ppo_rlhf_tiny.py", *words]),
        "versions": json.loads((run_dir / "config.json").read_text())["versions"],
        "result": json.loads((run_dir / "result.json").read_text()),
        "cpu_seconds": round(after.ru_utime - before.ru_utime, 1),
        "curves": curves,
    }


def best_of_n(seed: int, prompts: int = 128) -> dict:
    """The best of n responses of pi_ref by the proxy: no optimiser, KL = log n - (n - 1) / n."""
    import torch

    sys.path.insert(0, str(ROOT))
    import ppo_rlhf_tiny as rlhf

    torch.set_num_threads(1)
    args, checkpoint = rlhf.load_run("resume", str(RUNS / f"beta0.1-seed{seed}"))
    corpus = rlhf.read_corpus(args)
    networks = rlhf.make_networks(args, corpus)
    networks.load_state_dict(checkpoint["networks"])
    networks["policy"] = networks["reference"]
    generator = torch.Generator().manual_seed(seed)
    choice = torch.randint(len(corpus.held_out), (prompts,), generator=generator)
    x = corpus.held_out[choice, : corpus.P]
    many = [rlhf.answer(networks, x, corpus, args, generator) for _ in range(max(BEST_OF))]
    proxy, gold = (torch.stack([getattr(a, name) for a in many]) for name in ("proxy", "gold"))
    found = {"kl_ref": [], "proxy": [], "gold": []}
    for n in BEST_OF:  # groups of n, so that each n uses every response
        groups = proxy.view(-1, n, prompts)
        best = groups.argmax(1, keepdim=True)
        found["kl_ref"].append(round(float(np.log(n) - (n - 1) / n), 5))
        found["proxy"].append(round(groups.gather(1, best).mean().item(), 5))
        found["gold"].append(round(gold.view(-1, n, prompts).gather(1, best).mean().item(), 5))
    return {"cell": "best of n", "seed": seed, "n": BEST_OF, "curves": found}


def run(seeds: list[int]) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["cell"], row["seed"]) for row in load()}
    for seed in seeds:
        for cell in [*CELLS, "best of n"]:
            if (cell, seed) in done:
                continue
            row = best_of_n(seed) if cell == "best of n" else train(cell, seed)
            with open(RESULTS, "a") as file:
                print(json.dumps(row), file=file)


# ------------------------------------------------------------------------------ tables and pictures
def curves(rows: list[dict], cell: str, curve: str) -> np.ndarray:
    """(seeds, updates)"""
    return np.array([row["curves"][curve] for row in rows if row["cell"] == cell])


def smooth(x: np.ndarray, width: int = 5) -> np.ndarray:
    """Means over up to `width` neighbouring updates, along the last axis."""
    sides = [(0, 0)] * (x.ndim - 1) + [(width // 2, width // 2)]
    padded = np.pad(x, sides, mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, width, -1).mean(-1)


def span(values) -> str:
    """0.21 [0.19, 0.24]: mean, lowest and highest over the seeds."""
    values = np.asarray(values)
    return f"{values.mean():.2f} [{values.min():.2f}, {values.max():.2f}]"


def table() -> None:
    rows = load()
    print(
        "| setting | seeds | proxy, end | gold, peak | gold, end | KL, end | largest KL, 1 update |"
    )
    print("|---|---|---|---|---|---|---|")
    for cell in CELLS:
        if not len(curves(rows, cell, "gold")):
            continue
        gold = smooth(curves(rows, cell, "gold"))
        proxy, kl = smooth(curves(rows, cell, "proxy")), smooth(curves(rows, cell, "kl_ref"))
        largest = curves(rows, cell, "kl_old_new").max(1)
        cells = (proxy[:, -1], gold.max(1), gold[:, -1], kl[:, -1], largest)
        print(f"| {cell} | {len(gold)} | {' | '.join(map(span, cells))} |")
    print("\n| best of | KL | proxy | gold |\n|---|---|---|---|")
    best = [curves(rows, "best of n", name) for name in ("kl_ref", "proxy", "gold")]
    for n, kl, proxy, gold in zip(BEST_OF, *(x.T for x in best)):
        print(f"| {n} | {kl[0]:.2f} | {span(proxy)} | {span(gold)} |")
    accuracy = [r["result"]["reward_model_accuracy"] for r in rows if r["cell"] == "beta 0.1"]
    print(f"\nreward model, held-out accuracy: {span(accuracy)}")


def fit_gold(d: np.ndarray, gain: np.ndarray) -> tuple:
    """alpha, beta of Gao et al.'s gain = d (alpha - beta log d), by least squares."""
    design = np.stack([d, -d * np.log(d)], 1)
    return tuple(np.linalg.lstsq(design, gain, rcond=None)[0])


def plot() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = load()
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharex=True)
    cells = ["beta 0", "beta 0.03", "beta 0.1", "beta 0.3", "gold, beta 0"]
    for cell, colour in zip(cells, ("C3", "C1", "C0", "C2", "0.5")):
        kl = smooth(curves(rows, cell, "kl_ref")).mean(0)
        for axis, name in zip(axes, ("proxy", "gold")):
            axis.plot(kl**0.5, smooth(curves(rows, cell, name)).mean(0), colour, label=cell)
    kl, gold = (smooth(curves(rows, "beta 0", name)).mean(0) for name in ("kl_ref", "gold"))
    late = kl > 0.05
    alpha, beta = fit_gold(kl[late] ** 0.5, gold[late] - gold[0])
    d = np.linspace(0.1, kl.max() ** 0.5, 100)
    label = f"d ({alpha:.2f} - {beta:.2f} log d), fitted to beta 0"
    axes[1].plot(d, gold[0] + d * (alpha - beta * np.log(d)), "k:", label=label)
    best = [curves(rows, "best of n", name).mean(0) for name in ("kl_ref", "proxy", "gold")]
    for axis, values, name in zip(axes, best[1:], ("proxy", "gold")):
        axis.plot(best[0] ** 0.5, values, "k+", label="best of 1, 4, 16, 64, 256")
        axis.set(xlabel="d = square root of KL(pi, pi_ref)", ylabel=f"{name} reward")
        axis.legend(fontsize=7)
    axes[0].set_title("What PPO is paid: the reward model", fontsize=10)
    axes[1].set_title("What it was meant to do: the gold reward", fontsize=10)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "rlhf-overoptimization.png", dpi=110)

    figure, axes = plt.subplots(2, 3, figsize=(12, 6.5))
    four = {"beta 0.1": "C0", "beta 0": "C3", "no clip, beta 0.1": "C2", "no clip, beta 0": "C1"}
    for row, prefix in enumerate(("", "aggressive: ")):
        for cell, colour in four.items():
            for axis, name in zip(axes[row], ("kl_old_new", "kl_ref", "gold")):
                label = cell if cell.startswith("no") else f"clip, {cell}"
                values = curves(rows, prefix + cell, name)
                for one in smooth(values, 1 if name == "kl_old_new" else 5):
                    axis.plot(np.arange(1, 1 + len(one)), one, colour, alpha=0.8, lw=1, label=label)
                    label = None
        axes[row, 0].set(yscale="log", ylabel="KL(pi_old, pi) of an update, nats per response")
        axes[row, 1].set(yscale="log", ylabel="KL(pi, pi_ref), nats per response")
        axes[row, 2].set(ylabel="gold reward")
        kind = "lr 1e-3, 8 epochs, gradients unclipped" if row else "lr 3e-4, 4 epochs, norm 1"
        for axis in axes[row]:
            axis.set_xlabel("update")
            axis.set_title(kind, fontsize=9)
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "rlhf-two-devices.png", dpi=110)


if __name__ == "__main__":
    action = sys.argv[1] if len(sys.argv) > 1 else ""
    if action == "run":
        run([int(word) for word in sys.argv[3:]] or [1, 2, 3])
    elif action in ("table", "plot"):
        {"table": table, "plot": plot}[action]()
    else:
        sys.exit(__doc__)
