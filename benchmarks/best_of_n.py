"""The best of n responses of the SFT model by the reward model: the baseline without an optimiser.

    python benchmarks/best_of_n.py --seed 1 --run-dir DIR

Its KL from the SFT model is log n - (n - 1) / n (Gao et al. 2022, 2210.10760). The models are those
that ppo_rlhf_tiny.py trains with the same seed. Leaves what a run of a script leaves: config.json,
episodes.csv, result.json and, as TensorBoard scalars, the means of proxy and gold at step n.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
import tyro
from torch.utils.tensorboard import SummaryWriter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import ppo_rlhf_tiny as script

SIZES = (1, 4, 16, 64, 256)


@dataclass
class Args:
    """The best of n responses of the SFT model by the reward model."""

    run_dir: str  # folder for the results
    seed: int = 1  # of the models and the responses
    prompts: int = 128  # how many, of those that are held out


def best_of(proxy, gold, n: int) -> tuple:
    """Mean proxy and gold of the best by proxy in each group of n of the R responses: (R, N)."""
    groups, golds = proxy.view(-1, n, proxy.shape[1]), gold.view(-1, n, gold.shape[1])
    best, rows = groups.max(1, keepdim=True)  # (R / n, 1, N)
    return best.mean().item(), golds.gather(1, rows).mean().item()


def main(args: Args) -> dict:
    """Sample, choose, and return what result.json holds."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    script_args = script.Args(seed=args.seed)
    corpus, networks = script.make_networks(script_args)
    script.train_stages(networks, corpus, script_args)
    generator = torch.Generator().manual_seed(args.seed)
    choice = torch.randint(len(corpus.held_out), (args.prompts,), generator=generator)
    prompts = corpus.held_out[choice, : corpus.P]
    proxy, gold = [], []
    for i in range(max(SIZES)):
        a = script.answer(networks, prompts, corpus, script_args, generator)
        proxy.append(a.proxy)
        gold.append(a.gold)
        if (i + 1) % 16 == 0:
            print(f"episode {i + 1}/{max(SIZES)}  of each prompt", flush=True)
    proxy, gold = torch.stack(proxy), torch.stack(gold)  # (max(SIZES), prompts)

    run_dir = Path(args.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    writer = SummaryWriter(run_dir)
    for n in SIZES:
        means = dict(zip(("proxy", "gold"), best_of(proxy, gold, n)))
        for name, mean in means.items():
            writer.add_scalar(f"best_of_n/{name}", mean, n)
    writer.close()
    seconds = round(time.perf_counter() - start, 2)
    result = {"status": "finished", "steps": proxy.numel(), "score": means["gold"]}
    result |= {"episodes": proxy.numel(), "seconds": seconds}
    versions = {name: version(name) for name in ("torch", "numpy")}
    versions["python"] = sys.version.split()[0]
    config = {"script": Path(__file__).stem, "args": asdict(args), "versions": versions}
    (run_dir / "config.json").write_text(json.dumps(config, indent=2))
    rows = [f"{n + 1},0,{p},1,{seconds}" for n, p in enumerate(proxy.flatten().tolist())]
    (run_dir / "episodes.csv").write_text("\n".join(["step,env,return,length,seconds", *rows, ""]))
    script.write_file(run_dir / "result.json", json.dumps(result, indent=2).encode())
    return result


if __name__ == "__main__":
    main(tyro.cli(Args))
