"""ppo_atari.py: the emulators against ale-py itself, and scripted games that the tests can see."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import ale_py
import numpy as np
import pytest
import torch
from conftest import ROOT, command, flags, run, scalars
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F

import ppo_atari as atari

# Sixteen iterations of 64 steps in some seconds; a game of Breakout takes about 180 steps.
SMALL = {"env_id": "Breakout", "num_envs": 4, "num_steps": 16, "minibatch_size": 64}
SMALL |= {"total_timesteps": 1024, "num_epochs": 1, "compile": False, "save_every": 2}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Threads that wait for each other take ten times as long where something else runs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


def small_args(**changes):
    return atari.Args(**{**SMALL, **changes})


def episodes(run_dir) -> list[tuple]:
    """episodes.csv without the seconds, which no two runs share."""
    with open(Path(run_dir, "episodes.csv")) as file:
        return [tuple(row.values())[:4] for row in csv.DictReader(file)]


def saved(run_dir) -> dict:
    return torch.load(Path(run_dir, "checkpoint.pt"), weights_only=True)


def assert_same_run(a, b):
    assert episodes(a) == episodes(b) and len(episodes(a)) > 0
    for (name, p), q in zip(saved(a)["agent"].items(), saved(b)["agent"].values()):
        assert torch.equal(p, q), name


# ------------------------------------------------------------------------------------ the formulas
def test_the_categorical_distribution_is_the_one_of_torch():
    old_logits, logits = torch.randn(2, 50, 6) * 3
    actions = torch.randint(6, (50,))
    old, new = Categorical(logits=old_logits), Categorical(logits=logits)
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(
        atari.categorical_logprob(logits, actions), new.log_prob(actions), **close
    )
    torch.testing.assert_close(atari.categorical_entropy(logits), new.entropy(), **close)
    kl = atari.categorical_kl_old_new(old_logits, logits)
    torch.testing.assert_close(kl, kl_divergence(old, new), **close)


def test_the_network_is_mnihs():
    agent = atari.Agent(4)
    # 32 x 8x8x4, 64 x 4x4x32, 64 x 3x3x64, 3136 x 512, 512 x 4 and 512 x 1, and a bias each
    sizes = [8192 + 32, 32768 + 64, 36864 + 64, 1605632 + 512, 2048 + 4, 512 + 1]
    assert sum(p.numel() for p in agent.parameters()) == sum(sizes)
    obs = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    w = dict(agent.named_parameters())
    x = obs / 255
    for layer, stride in (("0", 4), ("2", 2), ("4", 1)):
        x = F.relu(F.conv2d(x, w[f"trunk.{layer}.weight"], w[f"trunk.{layer}.bias"], stride))
    x = F.relu(x.flatten(1) @ w["trunk.7.weight"].T + w["trunk.7.bias"])
    logits, values = agent(obs)
    torch.testing.assert_close(logits, x @ w["actor.weight"].T + w["actor.bias"])
    torch.testing.assert_close(values, (x @ w["critic.weight"].T + w["critic.bias"]).squeeze(1))


def test_one_gradient_step_is_autograd_and_torchs_adam():
    """And so is the compiled one. Adam's eps is large, so that the size of a gradient matters."""
    torch.manual_seed(0)
    args = atari.Args(bf16=False, max_grad_norm=0.5, ent_coef=0.3, vf_coef=0.7, adam_eps=0.1)
    batch = [torch.randint(256, (8, 4, 84, 84), dtype=torch.uint8), torch.randint(4, (8,))]
    batch += [torch.randn(8, 4), torch.randn(8), torch.randn(8)]
    rows = torch.tensor([6, 1, 3, 4])
    agents = [atari.Agent(4) for _ in range(3)]
    agents[0].actor.weight.data *= 100  # else all actions are alike, and entropy is at its peak
    before = [p.detach().clone() for p in agents[0].parameters()]
    for agent in agents[1:]:
        agent.load_state_dict(agents[0].state_dict())
    reference = agents[2]
    obs, actions, old_logits, advantages, returns = (x[rows] for x in batch)
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-3, eps=args.adam_eps)
    logits, values = reference(obs)
    new, old = Categorical(logits=logits), Categorical(logits=old_logits)
    ratio = (new.log_prob(actions) - old.log_prob(actions)).exp()
    surrogate = torch.min(ratio * advantages, ratio.clamp(0.9, 1.1) * advantages).mean()
    loss = -surrogate + 0.7 * (values - returns).pow(2).mean() - 0.3 * new.entropy().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    optimizer.step()
    clipped = torch.tensor(sum(not 0.9 <= r <= 1.1 for r in ratio.tolist()) / len(rows))
    expected = [-surrogate, (values - returns).pow(2).mean(), new.entropy().mean(), clipped]
    expected = [x.detach() for x in (*expected, norm, kl_divergence(old, new).mean())]
    for agent, step in zip(
        agents, (atari.train_step, atari.compile_or_fall_back(atari.train_step))
    ):
        params = list(agent.parameters())
        moments = [[torch.zeros_like(p) for p in params] for _ in range(2)]
        adam = (*moments, torch.tensor(1e-3 / (1 - 0.9)), torch.tensor(1 / (1 - 0.999)))
        metrics = step(agent, params, batch, rows, torch.tensor(0.1), adam, args)
        torch.testing.assert_close(metrics, torch.stack(expected), rtol=1e-4, atol=1e-5)
        for p, q, start in zip(params, reference.parameters(), before):
            torch.testing.assert_close(p - start, q - start, rtol=1e-2, atol=1e-7)


# ------------------------------------------------------------------- the emulators, against ale-py
def area(size: int, parts: int) -> np.ndarray:
    """(parts, size): row i averages the i-th of `parts` equal pieces of a line of `size` pixels."""
    edges = np.linspace(0, size, parts + 1)
    left = np.maximum(edges[:-1, None], np.arange(size))
    right = np.minimum(edges[1:, None], np.arange(1, size + 1))
    return np.maximum(right - left, 0) * parts / size


@pytest.mark.parametrize("game", ["Breakout", "Pong", "MsPacman"])
def test_a_step_is_four_frames_the_last_two_of_them_pooled(game):
    """Every picture, reward and life as ale-py itself has them, driven by hand."""
    rom = atari.rom_name(game)
    games = atari.make_games(game, 1)
    ale = ale_py.ALEInterface()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale.setInt("random_seed", 3)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(ale_py.roms.get_rom_path(rom))
    ale.reset_game()
    obs, info = games.reset(seed=np.array([3]))
    buttons = ale.getMinimalActionSet()
    if ale_py.Action.FIRE in buttons:
        ale.act(ale_py.Action.FIRE)
    while ale.getEpisodeFrameNumber() < info["episode_frame_number"][0]:
        ale.act(ale_py.Action.NOOP)
    assert (obs[0, :3] == 0).all() and obs[0, 3].any()  # what was before it nobody knows
    rng, stack = np.random.default_rng(0), [obs[0, 3]]
    for step in range(60):
        action = int(rng.integers(len(buttons)))
        reward, frames = 0, []
        for _ in range(4):
            reward += ale.act(buttons[action])
            frames.append(ale.getScreenGrayscale().astype(float))
        before = info["episode_frame_number"][0]
        obs, rewards, over, truncated, info = games.step(np.array([action]))
        assert info["episode_frame_number"][0] - before == 4
        pooled = np.maximum(frames[2], frames[3])  # (210, 160)
        picture = area(210, 84) @ pooled @ area(160, 84).T  # (84, 84)
        np.testing.assert_allclose(obs[0, 3], picture, atol=1.01)  # rounded
        stack.append(obs[0, 3])
        np.testing.assert_array_equal(obs[0, -len(stack[-4:]) :], stack[-4:])
        assert rewards[0] == reward and info["lives"][0] == ale.lives()
        assert not over[0] and not truncated[0]


def test_a_game_begins_with_up_to_30_actions_that_do_nothing():
    games = atari.make_games("Pong", 32)
    frames = games.reset(seed=np.arange(32))[1]["episode_frame_number"]
    assert frames.min() >= 0 and 20 < frames.max() <= 30 and len(set(frames)) > 10


def test_a_life_lost_is_not_the_end_and_the_end_begins_anew():
    games = atari.make_games("Breakout", 1)
    _, info = games.reset(seed=np.array([1]))
    lives, lost, rng = 5, 0, np.random.default_rng(0)
    while True:
        before = info["episode_frame_number"][0]
        obs, _, over, truncated, info = games.step(rng.integers(4, size=1))
        assert not truncated[0]
        if over[0]:
            break
        assert info["episode_frame_number"][0] == before + 4
        lost += info["lives"][0] < lives
        lives = info["lives"][0]
    assert lost == 4 and lives == 1 and info["lives"][0] == 5
    assert info["episode_frame_number"][0] <= 30
    assert (obs[0, :3] == 0).all() and obs[0, 3].any()  # the first picture of the next game


def test_rewards_are_what_the_game_paid():
    games = atari.make_games("MsPacman", 1)  # ten points a dot
    games.reset(seed=np.array([1]))
    rng = np.random.default_rng(0)
    assert 10 in {int(games.step(rng.integers(9, size=1))[1][0]) for _ in range(100)}


def test_actions_stick_only_if_they_are_told_to():
    def play(sticky, seed):
        games = atari.make_games("Breakout", 1, sticky, noop_max=0)  # all seeds begin alike
        games.reset(seed=np.array([seed]))
        rng = np.random.default_rng(0)
        return np.stack([games.step(rng.integers(4, size=1))[0] for _ in range(50)])

    assert np.array_equal(play(0.0, 1), play(0.0, 2))
    assert np.array_equal(play(0.25, 1), play(0.25, 1))
    assert not np.array_equal(play(0.25, 1), play(0.25, 2))


NAMES = {
    "Pong": "pong",
    "ALE/Pong-v5": "pong",
    "PongNoFrameskip-v4": "pong",
    "PongDeterministic-v0": "pong",
    "MsPacman": "ms_pacman",
    "ms_pacman": "ms_pacman",
    "ALE/SpaceInvaders-v5": "space_invaders",
    "Qbert": "qbert",
}


@pytest.mark.parametrize("name,rom", NAMES.items())
def test_names_as_people_write_them(name, rom):
    assert atari.rom_name(name) == rom


# ----------------------------------------------------------------------------------- scripted games
class Fake:
    """What AtariVectorEnv has, for games that are a reset and a step."""

    def send(self, actions):
        self.answer = self.step(actions)

    def recv(self):
        return self.answer

    def close(self):
        pass


class Scripted(Fake):
    """Games in which everything goes by the script, the same in each; what AtariVectorEnv answers.

    script: (reward, lives afterwards, over) of each step, again and again. A picture is grey, as
    bright as the step's number; `actions` keeps what was done.
    """

    def __init__(self, num_envs, script, num_actions=3):
        self.num_envs, self.script, self.actions = num_envs, script, []
        self.single_action_space = SimpleNamespace(n=num_actions)

    def picture(self):
        return np.full((self.num_envs, 4, 84, 84), (1 + self.step_number) % 256, np.uint8)

    def info(self, lives):
        return {"lives": np.full(self.num_envs, lives)}

    def reset(self, seed=None, options=None):
        self.step_number = 0
        return self.picture(), self.info(3)

    def step(self, actions):
        self.actions.append(actions)
        reward, lives, over = self.script[self.step_number % len(self.script)]
        self.step_number = 0 if over else self.step_number + 1
        none = np.zeros(self.num_envs, bool)
        rewards = np.full(self.num_envs, reward, np.int32)
        return self.picture(), rewards, none | over, none, self.info(3 if over else lives)


def play_script(monkeypatch, script, **changes):
    """Train on scripted games; returns what compute_gae got, in each iteration."""
    seen, compute_gae = [], atari.compute_gae

    def spy(*args):
        seen.append(SimpleNamespace(**dict(zip(NAMES_OF_GAE, args))))
        return compute_gae(*args)

    monkeypatch.setattr(atari, "compute_gae", spy)
    monkeypatch.setattr(atari, "make_games", lambda env_id, n, *a, **k: Scripted(n, script))
    args = {"num_envs": 2, "num_steps": 8, "minibatch_size": 16, "total_timesteps": 16}
    args |= {"run_dir": "a", "bf16": False, **changes}
    atari.main(small_args(**args))
    return seen


NAMES_OF_GAE = ("rewards", "values", "next_values", "terminated", "ended", "gamma", "lam")


def test_a_life_lost_ends_the_training_episode_and_not_the_game(monkeypatch):
    """Two lives are lost, at steps 2 and 4; the third, at step 5, ends the game."""
    script = [(7, 3, False), (-20, 2, False), (0, 2, False), (1, 1, False), (3, 0, True)]
    (gae,) = play_script(monkeypatch, script)
    assert gae.rewards[:, 0].tolist() == [1, -1, 0, 1, 1, 1, -1, 0]  # signs are learnt
    assert gae.terminated[:, 0].tolist() == [0, 1, 0, 1, 1, 0, 1, 0]
    assert np.array_equal(gae.ended, gae.terminated)
    # 7 - 20 + 0 + 1 + 3: whole games are logged, and what they paid
    assert episodes("a") == [("10", "0", "-9.0", "5"), ("10", "1", "-9.0", "5")]


def test_no_lives_left_is_not_yet_the_end(monkeypatch):
    """As in Qbert: some frames pass between the last life and the end, which counts once."""
    script = [(0, 1, False), (0, 0, False), (0, 0, False), (1, 0, True)]
    (gae,) = play_script(monkeypatch, script)
    assert gae.terminated[:, 0].tolist() == [1, 0, 0, 1, 1, 0, 0, 1]


def test_a_time_limit_is_no_death(monkeypatch):
    """After three steps the game is cut: the value of its last picture comes into the advantage."""
    monkeypatch.setattr(atari, "MAX_STEPS", 3)
    agents = []

    class Kept(atari.Agent):
        def __init__(self, *args):
            super().__init__(*args)
            agents.append({name: x.clone() for name, x in self.state_dict().items()})

    monkeypatch.setattr(atari, "Agent", Kept)
    (gae,) = play_script(monkeypatch, [(1, 3, False)])
    assert gae.ended[:, 0].tolist() == [0, 0, 1, 0, 0, 1, 0, 0] and not gae.terminated.any()
    assert [row[2:] for row in episodes("a")] == [("3.0", "3")] * 4
    first = atari.Agent(3)
    first.load_state_dict(agents[0])
    with torch.no_grad():  # of the pictures 1, 2, 3 and 4, the last of which is never acted on
        pictures = torch.arange(1, 5, dtype=torch.uint8)[:, None, None, None].expand(4, 4, 84, 84)
        value = first(pictures)[1].numpy()
    expected = [value[1], value[2], value[3]] * 2 + [value[1], value[2]]
    np.testing.assert_allclose(gae.next_values[:, 0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gae.values[:, 0], [*value[:3], *value[:3], *value[:2]], atol=1e-5)


def test_alpha_multiplies_stepsize_and_clip(monkeypatch):
    play_script(monkeypatch, [(0, 3, False)], total_timesteps=64)
    alphas = np.array([1, 0.75, 0.5, 0.25])
    for tag, first in (("charts/learning_rate", 2.5e-4), ("charts/clip_coef", 0.1)):
        values = [value for _, value in scalars("a", tag)]
        np.testing.assert_allclose(values, first * alphas, rtol=1e-5)


@pytest.mark.parametrize("bf16,tolerance", [(False, 1e-4), (True, 0.03)])
def test_the_ratio_is_one_in_the_first_minibatch(monkeypatch, bf16, tolerance):
    ratios, train_step = [], atari.train_step

    def spy(agent, params, batch, rows, *rest):
        obs, actions, old_logits = (x[rows] for x in batch[:3])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits, _ = agent(obs)
        new, old = (atari.categorical_logprob(x, actions) for x in (logits, old_logits))
        ratios.append((new - old).exp())
        return train_step(agent, params, batch, rows, *rest)

    monkeypatch.setattr(atari, "train_step", spy)
    monkeypatch.setattr(atari, "has_bf16", lambda device: True)
    atari.main(small_args(bf16=bf16, total_timesteps=64, learning_rate=0.01))
    assert (ratios[0] - 1).abs().max() < tolerance


def test_actions_are_samples_of_the_softmax(monkeypatch):
    """Of 4,000 actions in the same state, as many of each kind as the policy says."""

    class Known(atari.Agent):
        def forward(self, obs):
            logits = torch.tensor([0.1, 0.3, 0.6]).log().expand(len(obs), 3)
            return logits + 0 * self.actor.bias.float(), 0 * obs[:, 0, 0, 0].float()

    monkeypatch.setattr(atari, "Agent", Known)
    made = []

    def make_games(env_id, n, *a, **k):
        made.append(Scripted(n, [(0, 3, False)]))
        return made[-1]

    monkeypatch.setattr(atari, "make_games", make_games)
    monkeypatch.setattr(atari, "train_step", lambda *a: torch.zeros(6))
    args = {"num_envs": 8, "num_steps": 500, "minibatch_size": 4000, "total_timesteps": 4000}
    atari.main(small_args(**args))
    chosen = np.concatenate([actions for group in made for actions in group.actions])
    counts = np.bincount(chosen, minlength=3)
    # five standard deviations of a binomial: 5 sqrt(4000 x 0.24) = 155
    assert np.abs(counts - [400, 1200, 2400]).max() < 155


# ------------------------------------------------------------------------ what a run leaves behind
def test_the_command_line_trains_and_leaves_everything_behind(tmp_path):
    done = run("ppo_atari", *flags(**SMALL), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = Path(tmp_path, "runs").iterdir()
    assert run_dir.name.startswith("Breakout__ppo_atari__seed1__")
    config = json.loads((run_dir / "config.json").read_text())
    assert config["script"] == "ppo_atari" and config["args"]["num_steps"] == 16
    assert {"python", "torch", "gymnasium", "ale-py", "numpy"} <= set(config["versions"])
    result = json.loads((run_dir / "result.json").read_text())
    rows = episodes(run_dir)
    assert result["status"] == "finished" and result["steps"] == 1024
    assert result["episodes"] == len(rows) > 0
    assert result["score"] == pytest.approx(np.mean([float(row[2]) for row in rows[-100:]]))
    assert all(100 < int(length) < 256 and float(r) >= 0 for _, _, r, length in rows)
    kl = scalars(run_dir, "losses/kl_old_new")
    assert [step for step, _ in kl] == list(range(64, 1025, 64))
    assert all(-1e-3 < value < 1 for _, value in kl)
    assert str(run_dir.name) in done.stdout and "steps/s" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]  # and nothing else anywhere


def test_a_copied_script_runs_alone(tmp_path):
    copy = shutil.copy(ROOT / "ppo_atari.py", tmp_path / "fork.py")
    words = [sys.executable, copy, *flags(**{**SMALL, "total_timesteps": 64})]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "__fork__seed1" in next(Path(tmp_path, "runs").iterdir()).name


def test_help_shows_every_flag_and_its_meaning(tmp_path):
    done = run("ppo_atari", "--help", cwd=tmp_path)
    assert done.returncode == 0
    text = " ".join(done.stdout.replace("│", " ").split())
    source = (ROOT / "ppo_atari.py").read_text()
    for name in atari.Args.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text
        assert source.count(f"args.{name}") or name in source.split("def check_args")[1], name
    assert "lambda of generalised advantage estimation (Table 5: 0.95)" in text


def test_the_defaults_are_table_5():
    args = atari.Args()
    assert (args.num_steps, args.num_envs, args.num_epochs, args.minibatch_size) == (128, 8, 3, 256)
    assert (args.learning_rate, args.clip_coef, args.vf_coef, args.ent_coef) == (
        2.5e-4,
        0.1,
        1,
        0.01,
    )
    assert (args.gamma, args.gae_lambda, args.total_timesteps) == (0.99, 0.95, 10_000_000)
    assert args.anneal_lr and args.anneal_clip and args.sticky_actions == 0


def test_memory_stays_below_one_and_a_half_gigabytes(tmp_path):
    code = "import ppo_atari, resource; ppo_atari.main(ppo_atari.Args(total_timesteps=1024));"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    words = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **words)
    assert done.returncode == 0, done.stderr
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout.split()[-1]) * unit < 1.5e9


# --------------------------------------------------------------------------- determinism and resume
@pytest.mark.parametrize("threads", [1, 2])
def test_same_seed_same_run_and_another_seed_another(threads):
    torch.set_num_threads(threads)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        atari.main(small_args(run_dir=name, seed=seed))
        assert torch.get_num_threads() == threads
    assert_same_run("a", "b")
    assert episodes("a") != episodes("c")


def interrupted(monkeypatch, at_step, **changes):
    """A run that SIGTERM reaches in the iteration that ends at a step."""
    report = atari.report

    def stop(writer, bar, step, *rest):
        report(writer, bar, step, *rest)
        if step == at_step:
            atari.stop_signals.append(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(atari, "report", stop)
        with pytest.raises(SystemExit) as exit:
            atari.main(small_args(**changes))
    assert exit.value.code == 128 + signal.SIGTERM
    atari.stop_signals.clear()
    run_dir = Path(changes["run_dir"])
    assert json.loads((run_dir / "result.json").read_text())["steps"] == at_step


def test_a_resumed_run_continues_all_but_the_games(monkeypatch):
    """Where a game remembers nothing, the resumed run is the uninterrupted one, bit for bit."""
    script = [(1, 3, False), (0, 2, False), (2, 2, True)]
    monkeypatch.setattr(atari, "make_games", lambda env_id, n, *a, **k: Scripted(n, script))
    changes = {"num_steps": 15, "minibatch_size": 60, "total_timesteps": 960}
    atari.main(small_args(run_dir="a", **changes))
    interrupted(monkeypatch, 300, run_dir="b", **changes)
    atari.main(atari.Args(resume="b"))
    assert_same_run("a", "b")
    for tag in ("losses/value_loss", "charts/learning_rate"):
        assert scalars("a", tag) == scalars("b", tag)


def test_the_same_resumed_run_twice(monkeypatch):
    interrupted(monkeypatch, 640, run_dir="a")
    before = episodes("a")
    shutil.copytree("a", "b")
    for name in ("a", "b"):
        assert atari.main(atari.Args(resume=name))["steps"] == 1024
    assert_same_run("a", "b")
    assert episodes("a")[: len(before)] == before


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path):
    words = command("ppo_atari", *flags(**{**SMALL, "total_timesteps": 100_032}), "--run-dir", "a")
    child = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        while not Path("a/checkpoint.pt").exists() or saved("a")["run"]["global_step"] == 0:
            time.sleep(0.1)
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    step = saved("a")["run"]["global_step"]
    config = json.loads(Path("a/config.json").read_text())
    config["args"]["total_timesteps"] = step + 128
    Path("a/config.json").write_text(json.dumps(config))
    assert atari.main(atari.Args(resume="a"))["steps"] == step + 128


# ---------------------------------------------------------------------------------------- evaluate
def test_evaluate_plays_whole_games_and_changes_nothing():
    atari.main(small_args(run_dir="a", total_timesteps=64))
    before = Path("a/checkpoint.pt").read_bytes()
    first = atari.main(atari.Args(evaluate="a", eval_episodes=2))
    assert len(first["returns"]) == 2 and first["mean"] == pytest.approx(np.mean(first["returns"]))
    assert atari.main(atari.Args(evaluate="a", eval_episodes=2)) == first
    assert atari.main(atari.Args(evaluate="a", eval_episodes=2, seed=9)) != first
    assert Path("a/checkpoint.pt").read_bytes() == before


def test_evaluate_pays_every_point_of_every_life(monkeypatch):
    script = [(7, 3, False), (-20, 2, False), (0, 1, False), (3, 0, True)]
    monkeypatch.setattr(atari, "make_games", lambda env_id, n, *a, **k: Scripted(n, script))
    atari.main(small_args(run_dir="a", total_timesteps=64))
    assert atari.main(atari.Args(evaluate="a", eval_episodes=3))["returns"] == [-10, -10, -10]
    monkeypatch.setattr(atari, "MAX_STEPS", 2)
    assert atari.main(atari.Args(evaluate="a", eval_episodes=1))["returns"] == [-13]


def test_capture_video_films_the_game_that_is_played(monkeypatch):
    """In colour, by a second emulator that does the same: its grey is what the policy sees."""
    atari.main(small_args(run_dir="a", total_timesteps=64))
    filmed = []
    monkeypatch.setattr(atari, "save_video", lambda frames, *a, **k: filmed.append(frames))
    played, step = [], atari.AtariVectorEnv.step

    def spy(self, action):
        result = step(self, action)
        if self.grayscale:
            played.append((result[0][0, 3], result[2][0]))
        return result

    monkeypatch.setattr(atari.AtariVectorEnv, "step", spy)
    atari.main(atari.Args(evaluate="a", eval_episodes=1, capture_video=True))
    (frames,) = filmed
    assert len(frames) == len(played) + 1 > 100 and frames[0].shape == (210, 160, 3)
    for frame, (picture, over) in zip(frames[1:-1:20], played[::20]):
        grey = frame.astype(float) @ [0.299, 0.587, 0.114]
        # pooled before or after it turned grey is not the same where two colours overlap
        assert np.abs(area(210, 84) @ grey @ area(160, 84).T - picture).mean() < 1


def test_a_video_is_a_video(tmp_path):
    atari.main(small_args(run_dir="a", total_timesteps=64))
    done = run("ppo_atari", *flags(evaluate="a", eval_episodes=1), "--capture-video", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    video = Path("a/video-episode-0.mp4")
    assert video.stat().st_size > 1000 and video.read_bytes()[4:8] == b"ftyp"
    assert "video-episode-0.mp4" in done.stdout


# --------------------------------------------------------------------------------------- bad input
BAD = [
    ({"total_timesteps": 60}, ["--total-timesteps 60", "num_envs * num_steps = 64"]),
    ({"num_steps": 0}, ["--num-steps 0", "1 or more"]),
    ({"gamma": 1.01}, ["--gamma 1.01", "from 0 to 1"]),
    ({"adam_eps": float("nan")}, ["--adam-eps nan", "above 0"]),
    ({"clip_coef": 0.0}, ["--clip-coef 0.0", "above 0"]),
    ({"sticky_actions": 1.5}, ["--sticky-actions 1.5", "from 0 to 1"]),
    ({"minibatch_size": 33}, ["--minibatch-size 33", "= 64; nearest is 32"]),
    ({"minibatch_size": 1}, ["--minibatch-size 1", "2 or more"]),
    ({"env_id": "Brekout"}, ["--env-id Brekout", "is no Atari game", "Breakout"]),
    ({"env_id": "HalfCheetah-v5"}, ["--env-id HalfCheetah-v5", "is no Atari game"]),
    ({"env_id": ""}, ["--env-id", "is no Atari game"]),
    ({"device": "tpu"}, ["--device tpu", "cpu or cuda"]),
    ({"eval_episodes": 3}, ["--eval-episodes 3", "leave it out"]),
    ({"capture_video": True}, ["--capture-video True", "leave it out"]),
    ({"run_dir": "/proc/no"}, ["--run-dir /proc/no", "another folder"]),
]


def refused(capsys, args, words):
    with pytest.raises(SystemExit) as stop:
        atari.main(args)
    line = capsys.readouterr().err
    assert stop.value.code == 2 and line.count("\n") == 1
    assert line.startswith("ppo_atari.py: error: --")
    for word in words:
        assert word in line
    assert not Path("runs").exists()


@pytest.mark.parametrize("changes,words", BAD)
def test_bad_input_is_refused_in_one_line(capsys, monkeypatch, changes, words):
    monkeypatch.setattr(atari, "has_bf16", lambda device: True)  # which it would say, too
    refused(capsys, small_args(**changes), words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused(capsys):
    refused(capsys, small_args(device="cuda"), ["--device cuda", "no GPU"])


def test_folders_that_are_no_runs_are_refused(capsys):
    Path("empty").mkdir()
    for mode in ("resume", "evaluate"):
        for folder in ("empty", "nowhere"):
            refused(capsys, atari.Args(**{mode: folder}), [f"--{mode} {folder}", "run"])
    atari.main(small_args(run_dir="a", total_timesteps=64))
    capsys.readouterr()
    refused(capsys, small_args(run_dir="a"), ["--run-dir a", "holds a run"])
    refused(capsys, atari.Args(resume="a", seed=3), ["--seed 3", "leave it out"])
    refused(capsys, atari.Args(evaluate="a", env_id="Qbert"), ["--env-id Qbert"])
    atari.start_run(small_args(run_dir="young"))
    refused(capsys, atari.Args(evaluate="young"), ["no checkpoint.pt"])
    Path("a/checkpoint.pt").write_bytes(Path("a/checkpoint.pt").read_bytes()[:2000])
    refused(capsys, atari.Args(evaluate="a"), ["--evaluate a", "is damaged"])


def test_without_ale_py_the_command_is_named(tmp_path):
    code = "import sys, runpy; sys.modules['ale_py'] = None;"
    code += f"runpy.run_path({str(ROOT / 'ppo_atari.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "pip install ale-py==0.12.1" in done.stderr


def test_nan_in_the_loss_stops_the_run(monkeypatch):
    monkeypatch.setattr(atari, "whiten", lambda x: x * float("nan"))
    with pytest.raises(FloatingPointError, match="^loss.* step 64, seed 1"):
        atari.main(small_args(run_dir="a"))
    assert saved("a")["run"]["global_step"] == 0


def test_without_bfloat16_training_goes_on_in_float32(monkeypatch, capsys):
    monkeypatch.setattr(atari, "has_bf16", lambda device: False)
    atari.main(small_args(total_timesteps=64, run_dir="a"))
    assert "going on in float32" in capsys.readouterr().err
    assert json.loads(Path("a/config.json").read_text())["args"]["bf16"] is False


# ---------------------------------------------------------------------------------------- learning
class Catch(Fake):
    """A ball falls through 4 x 4 squares, a paddle catches it (1) or does not (-1): 84 x 84 pixels.

    Actions: left, stay, right. A game is three steps; a policy that looks catches every ball.
    """

    def __init__(self, num_envs, *args):
        self.num_envs, self.single_action_space = num_envs, SimpleNamespace(n=3)

    def begin(self, rows):
        self.ball[rows] = self.rng.integers(4, size=rows.sum())
        self.paddle[rows], self.height[rows], self.stack[rows] = 1, 0, 0

    def picture(self):
        grid = np.zeros((self.num_envs, 4, 4), np.uint8)
        rows = np.arange(self.num_envs)
        grid[rows, self.height, self.ball] = 255
        grid[rows, 3, self.paddle] = 128
        self.stack = np.roll(self.stack, -1, 1)
        self.stack[:, 3] = grid.repeat(21, 1).repeat(21, 2)
        return self.stack.copy(), {"lives": np.zeros(self.num_envs, int)}

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.ball, self.paddle, self.height = np.zeros((3, self.num_envs), int)
        self.stack = np.zeros((self.num_envs, 4, 84, 84), np.uint8)
        self.begin(np.ones(self.num_envs, bool))
        return self.picture()

    def step(self, actions):
        self.paddle = (self.paddle + actions - 1).clip(0, 3)
        self.height += 1
        over = self.height == 3
        rewards = np.where(over, np.where(self.paddle == self.ball, 1, -1), 0)
        self.begin(over)
        obs, info = self.picture()
        return obs, rewards, over, np.zeros(self.num_envs, bool), info


def test_it_learns_to_catch_a_ball(monkeypatch):
    """Chance catches one ball in four: a return of -0.5."""
    monkeypatch.setattr(atari, "make_games", lambda env_id, n, *a, **k: Catch(n))
    args = {"num_steps": 32, "minibatch_size": 64, "learning_rate": 1e-3, "compile": False}
    args["total_timesteps"] = 8192
    result = atari.main(atari.Args(run_dir="a", **args))
    assert result["score"] >= 0.9, result
