"""What the tests share: the scripts as modules and as commands, and small environments."""

import importlib
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
MUJOCO_SCRIPTS = ["vpg_continuous", "ppo_continuous", "trpo_continuous"]

# Ten iterations of 128 steps, in about a second.
SMALL = {"env_id": "InvertedPendulum-v5", "num_steps": 128, "total_timesteps": 1280}
SMALL |= {"minibatch_size": 32, "compile": False, "save_every": 2}


def small_args(module, **changes):
    return module.Args(**{**SMALL, **changes})


def flags(**values) -> list[str]:
    """{"num_steps": 128, "compile": False} -> ["--num-steps", "128", "--no-compile"]"""
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def small_flags(**changes) -> list[str]:
    return flags(**{**SMALL, **changes})


def command(script: str, *arguments) -> list[str]:
    return [sys.executable, str(ROOT / f"{script}.py"), *map(str, arguments)]


def run(script: str, *arguments, cwd) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(script, *arguments), cwd=cwd, capture_output=True, text=True, timeout=600
    )


def scalars(run_dir, tag) -> list[tuple]:
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.fixture(params=MUJOCO_SCRIPTS)
def script(request) -> str:
    return request.param


@pytest.fixture
def module(script):
    return importlib.import_module(script)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Counter(gym.Env):
    """Observes the step number of its episode, pays 1 a step, ends after `length` steps.

    At step `bad_step` of its life, `bad` ("observation" or "reward") is NaN.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, length=3, bad=None, bad_step=10):
        self.length, self.bad, self.bad_step = length, bad, bad_step
        self.life, self.actions = 0, []

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1), {}

    def step(self, action):
        self.actions.append(np.array(action))
        self.count += 1
        self.life += 1
        reward, obs = 1.0, np.array([float(self.count)])
        if self.life == self.bad_step and self.bad == "reward":
            reward = np.nan
        if self.life == self.bad_step and self.bad == "observation":
            obs[:] = np.nan
        return obs, reward, self.count >= self.length, False, {}


gym.register("Counter-v0", entry_point=Counter)
gym.register("CounterTimeLimit-v0", lambda **kw: Counter(10**9, **kw), max_episode_steps=3)
