"""Steps per second of a script against its peer: interleaved pairs, with the same threads.

    python -m benchmarks.speed                               ppo_continuous.py on HalfCheetah-v5
    python -m benchmarks.speed --no-compile
    python -m benchmarks.speed --script trpo_continuous      against sb3-contrib's TRPO
    python -m benchmarks.speed --script ppo_atari            on Breakout, with all cores
    python -m benchmarks.speed --env-ids HalfCheetah-v5 Hopper-v5 ...

The MuJoCo scripts and their peers get one thread, ppo_atari.py and its peer all. The peers are
Stable-Baselines3's PPO and sb3-contrib's TRPO, with the script's horizon, minibatch size, epochs,
conjugate gradient iterations and network sizes. On MuJoCo ours also scales observations and
rewards, which the peers leave to a wrapper; they run without. On Atari both have the paper's
preprocessing. Each measurement is a process of its own. The clock starts after the second
iteration, so that neither imports nor compiling count; the time until then is printed apart. "env
share" is the part of our time inside env.step (Atari: spent waiting for the games): at 100% there
would be nothing left to win.
"""

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Literal

import tyro

WARM_UP = 2  # iterations


@dataclass
class Speed:
    """Measure steps per second of a script against its peer."""

    script: Literal["ppo_continuous", "trpo_continuous", "ppo_atari"] = "ppo_continuous"
    """ours"""
    env_ids: list[str] = field(default_factory=list)
    """environments, else HalfCheetah-v5 or Breakout"""
    pairs: int = 3
    """pairs of runs per environment, ours and the peer's in turn"""
    iterations: int = 12
    """iterations per run, the first two of which do not count"""
    compile: bool = True
    """whether ours is compiled"""


def measure_ours(name: str, env_id: str, iterations: int, compile: bool) -> dict:
    """Run the script in this process, with a clock around env.step."""
    script = importlib.import_module(name)
    clock = {"env": 0.0}
    marks = []  # (seconds, seconds inside env.step) at the end of each iteration
    maker, waiting = ("make_games", "recv") if name == "ppo_atari" else ("make_env", "step")
    make_env, report = getattr(script, maker), script.report

    def timed_env(*args, **kwargs):
        env = make_env(*args, **kwargs)
        step = getattr(env, waiting)

        def timed_step(*actions):
            before = time.perf_counter()
            result = step(*actions)
            clock["env"] += time.perf_counter() - before
            return result

        setattr(env, waiting, timed_step)
        return env

    def timed_report(*args):
        report(*args)
        marks.append((time.perf_counter(), clock["env"]))

    setattr(script, maker, timed_env)
    script.report = timed_report
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as run_dir:
        args = script.Args(env_id=env_id, compile=compile, run_dir=run_dir)
        batch = args.num_envs * args.num_steps
        args.total_timesteps = batch * iterations
        script.main(args)
    (begin, env_begin), (end, env_end) = marks[WARM_UP - 1], marks[-1]
    return {
        "steps_per_second": batch * (iterations - WARM_UP) / (end - begin),
        "warm_up": begin - start,
        "env_share": (env_end - env_begin) / (end - begin),
    }


def measure_peer(name: str, env_id: str, iterations: int, compile: bool) -> dict:
    """Run the peer with the script's own defaults; its networks are the same by default."""
    import gymnasium as gym
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    args = importlib.import_module(name).Args()
    marks = []

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            marks.append(time.perf_counter())

        def _on_training_end(self) -> None:
            marks.append(time.perf_counter())

    start = time.perf_counter()
    same = {"n_steps": args.num_steps, "batch_size": args.minibatch_size, "device": "cpu"}
    if name == "ppo_atari":
        peer = atari_peer(env_id, args, n_epochs=args.num_epochs, **same)
    elif name == "ppo_continuous":
        torch.set_num_threads(1)
        peer = PPO("MlpPolicy", gym.make(env_id), n_epochs=args.num_epochs, **same)
    else:
        torch.set_num_threads(1)
        same |= {"cg_max_steps": args.cg_iters, "n_critic_updates": args.num_value_epochs}
        peer = TRPO("MlpPolicy", gym.make(env_id), **same)
    batch = args.num_envs * args.num_steps
    peer.learn(batch * iterations, callback=Clock())
    begin, end = marks[WARM_UP], marks[-1]
    steps = batch * (iterations - WARM_UP)
    return {"steps_per_second": steps / (end - begin), "warm_up": begin - start}


def atari_peer(env_id: str, args, **same):
    """Stable-Baselines3's PPO on the games as its own users make them."""
    import ale_py
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gym.register_envs(ale_py)
    games = make_atari_env(f"{env_id}NoFrameskip-v4", n_envs=args.num_envs, seed=1)
    coefficients = {"vf_coef": args.vf_coef, "ent_coef": args.ent_coef}
    coefficients |= {"clip_range": args.clip_coef, "learning_rate": args.learning_rate}
    return PPO("CnnPolicy", VecFrameStack(games, 4), **coefficients, **same)


def in_a_process(side: str, env_id: str, args: Speed) -> dict:
    words = [sys.executable, "-m", "benchmarks.speed", "measure"]
    words += [side, args.script, env_id, str(args.iterations), str(int(args.compile))]
    threads = {} if args.script == "ppo_atari" else {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **threads})
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(args: Speed) -> None:
    compiled = "compiled" if args.compile else "not compiled"
    threads = f"{os.cpu_count()} threads" if args.script == "ppo_atari" else "one thread"
    print(f"{args.script}, {compiled}; steps per second, {threads} each")
    print(f"{'environment':26} pair    ours    peer   ratio  env share  warm-up")
    default = "Breakout" if args.script == "ppo_atari" else "HalfCheetah-v5"
    for env_id in args.env_ids or [default]:
        ratios = []
        for pair in range(1, args.pairs + 1):
            ours = in_a_process("ours", env_id, args)
            peer = in_a_process("peer", env_id, args)
            ratios.append(ours["steps_per_second"] / peer["steps_per_second"])
            print(
                f"{env_id:26} {pair:4} {ours['steps_per_second']:7.0f} "
                f"{peer['steps_per_second']:7.0f} {ratios[-1]:7.2f} "
                f"{ours['env_share']:9.0%} {ours['warm_up']:7.1f}s",
                flush=True,
            )
        print(f"{env_id:26} median ratio {statistics.median(ratios):.2f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        side, name, env_id, iterations, compile = sys.argv[2:]
        measure = {"ours": measure_ours, "peer": measure_peer}[side]
        print(json.dumps(measure(name, env_id, int(iterations), bool(int(compile)))))
    else:
        main(tyro.cli(Speed))
