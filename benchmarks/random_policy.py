"""Episodes of a policy that has learnt nothing: the zero of the normalised scores.

    python benchmarks/random_policy.py --policy uniform --env-id Hopper-v5 --seed 1 --run-dir DIR

uniform draws actions evenly from the action space; untrained plays ppo_continuous.py's Gaussian
as that script plays it before its first update: same seeds, same networks, actions clipped. Its
first episodes are those of the script's first iteration, number for number. Leaves what a run of a
script leaves, written at the end: config.json, episodes.csv, result.json.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import ppo_continuous as script


@dataclass
class Args:
    """Play episodes with a policy that has learnt nothing."""

    run_dir: str  # folder for the results
    policy: Literal["uniform", "untrained"] = "untrained"  # which one
    env_id: str = "HalfCheetah-v5"  # gymnasium environment
    seed: int = 1  # of the networks, the environment and the actions
    episodes: int = 100  # how many
    log_std_init: float = script.Args.log_std_init  # log std of the untrained policy's actions


def main(args: Args) -> dict:
    """Play args.episodes episodes; returns what result.json holds."""
    torch.set_num_threads(1)
    env_seed, agent_seed, noise_seed = map(int, np.random.SeedSequence(args.seed).generate_state(3))
    env = script.make_env(args.env_id)
    observation, _ = env.reset(seed=env_seed)  # (O,)
    space = env.action_space  # (A,)
    space.seed(noise_seed)
    torch.manual_seed(agent_seed)
    agent = script.Agent(len(observation), len(space.low), norm_obs=True)
    actor = [(x.weight.detach().numpy().T, x.bias.detach().numpy()) for x in agent.actor[::2]]
    obs_std = agent.obs_moments.std().numpy()  # (O,), as good as 1: nothing has been observed
    std = torch.full((len(space.low),), args.log_std_init).exp().numpy()  # (A,)
    generator, horizon = torch.Generator().manual_seed(noise_seed), script.Args.num_steps

    rows, step, start = [], 0, time.perf_counter()
    episode_return, length = 0.0, 0
    while len(rows) < args.episodes:
        if args.policy == "uniform":
            action = space.sample()
        else:
            if step % horizon == 0:
                noise = torch.randn((horizon, 1, len(std)), generator=generator).numpy()
            x = (observation[None] / obs_std).clip(-10, 10).astype(np.float32)
            for weight, bias in actor[:-1]:
                x = np.tanh(x @ weight + bias)  # (1, 64)
            action = x @ actor[-1][0] + actor[-1][1] + std * noise[step % horizon]
            action = action[0].clip(space.low, space.high)  # (A,)
        observation, reward, death, cut, _ = env.step(action)
        episode_return, length, step = episode_return + float(reward), length + 1, step + 1
        if death or cut:
            seconds = time.perf_counter() - start
            rows.append(f"{step},0,{episode_return},{length},{seconds:.2f}")
            observation, _ = env.reset()
            if len(rows) % 10 == 0:
                speed = f"{step / seconds:.0f} steps/s"
                progress = f"episode {len(rows)}/{args.episodes}"
                print(f"{progress}  return {episode_return:.1f}  {speed}", flush=True)
            episode_return, length = 0.0, 0
    env.close()

    returns = [float(row.split(",")[2]) for row in rows]
    result = {"status": "finished", "steps": step, "score": float(np.mean(returns[-100:]))}
    result |= {"episodes": len(rows), "seconds": round(time.perf_counter() - start, 2)}
    versions = {name: version(name) for name in ("torch", "gymnasium", "mujoco", "numpy")}
    versions["python"] = sys.version.split()[0]
    config = {"script": Path(__file__).stem, "args": asdict(args), "versions": versions}
    run_dir = Path(args.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "episodes.csv").write_text("\n".join(["step,env,return,length,seconds", *rows, ""]))
    (run_dir / "config.json").write_text(json.dumps(config, indent=2))
    script.write_file(run_dir / "result.json", json.dumps(result, indent=2).encode())
    return result


if __name__ == "__main__":
    main(tyro.cli(Args))
