"""What holds for every MuJoCo script: command line, results, determinism, resume, bad input."""

import copy
import csv
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, command, flags, run, scalars, small_args, small_flags
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ppo_continuous as ppo
import trpo_continuous as trpo
import vpg_continuous as vpg


def episodes(run_dir) -> list[tuple]:
    """episodes.csv without the seconds, which no two runs share."""
    with open(Path(run_dir, "episodes.csv")) as file:
        rows = list(csv.DictReader(file))
    return [(row["step"], row["env"], row["return"], row["length"]) for row in rows]


def parameters(run_dir) -> dict:
    return torch.load(Path(run_dir, "checkpoint.pt"), weights_only=True)["agent"]


def assert_same_run(a, b):
    assert episodes(a) == episodes(b) and len(episodes(a)) > 0
    for (name, p), q in zip(parameters(a).items(), parameters(b).values()):
        assert torch.equal(p, q), name


# ------------------------------------------------------------------------ what a run leaves behind
def test_the_command_line_trains_and_leaves_everything_behind(script, tmp_path):
    done = run(script, *small_flags(compile=True), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = Path(tmp_path, "runs").iterdir()
    assert run_dir.name.startswith(f"InvertedPendulum-v5__{script}__seed1__")
    config = json.loads((run_dir / "config.json").read_text())
    assert config["script"] == script and config["args"]["num_steps"] == 128
    assert {"python", "torch", "gymnasium", "mujoco", "numpy"} <= set(config["versions"])
    result = json.loads((run_dir / "result.json").read_text())
    rows = episodes(run_dir)
    assert result["status"] == "finished" and result["steps"] == 1280
    assert result["episodes"] == len(rows) > 10
    assert result["score"] == pytest.approx(np.mean([float(row[2]) for row in rows[-100:]]))
    # InvertedPendulum pays 1 a step (0 for the last one when it falls): returns are raw
    assert all(float(r) in (int(length), int(length) - 1) for _, _, r, length in rows)
    assert max(int(row[0]) for row in rows) <= 1280
    kl = scalars(run_dir, "losses/kl_old_new")
    assert [step for step, _ in kl] == list(range(128, 1281, 128))
    assert all(0 < value < 1 for _, value in kl)
    assert str(run_dir.name) in done.stdout and "steps/s" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]  # and nothing else anywhere


def test_a_copied_script_runs_alone(script, tmp_path):
    copy = shutil.copy(ROOT / f"{script}.py", tmp_path / "fork.py")
    words = [*command(script)[:1], copy, *small_flags(total_timesteps=256)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "__fork__seed1" in next(Path(tmp_path, "runs").iterdir()).name


def test_help_shows_every_flag_and_its_meaning(script, tmp_path, module):
    done = run(script, "--help", cwd=tmp_path)
    assert done.returncode == 0
    text = " ".join(done.stdout.replace("│", " ").split())
    source = (ROOT / f"{script}.py").read_text()
    for name in module.Args.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text
        assert source.count(f"args.{name}") or name in source.split("def check_args")[1], name
    assert "lambda of generalised advantage estimation (Table 3: 0.95)" in text


def test_metrics_are_finite_and_the_cost_meter_counts(module, tmp_path):
    module.main(small_args(module, run_dir="a"))
    events = EventAccumulator("a").Reload()
    for tag in events.Tags()["scalars"]:
        assert np.isfinite([event.value for event in events.Scalars(tag)]).all(), tag
    if module is ppo:  # one pass for pi_old, K forward and backward ones, one for the KL
        assert all(v == pytest.approx(22) for _, v in scalars("a", "charts/passes_per_update"))


def test_the_total_is_rounded_down_to_whole_iterations(module):
    assert module.main(small_args(module, total_timesteps=300))["steps"] == 256


# ------------------------------------------------------------------------------------ determinism
def test_same_seed_same_run_and_another_seed_another(module):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        module.main(small_args(module, run_dir=name, seed=seed, num_envs=2))
    assert_same_run("a", "b")
    assert episodes("a") != episodes("c")


def test_threads_are_one(module):
    module.main(small_args(module, total_timesteps=128))
    assert torch.get_num_threads() == 1


# ------------------------------------------------------------------------------------ environments
NAMES = "HalfCheetah Hopper Walker2d Swimmer Reacher InvertedPendulum InvertedDoublePendulum"
NAMES += " Ant Humanoid Pusher HumanoidStandup"


@pytest.mark.parametrize("name", NAMES.split())
def test_a_restored_environment_goes_on_bit_for_bit(name, module):
    rng = np.random.default_rng(0)
    env, twin = module.make_env(f"{name}-v5"), module.make_env(f"{name}-v5")
    env.reset(seed=3)
    twin.reset(seed=4)
    low, high = env.action_space.low, env.action_space.high
    for moment in range(3):  # in the middle of an episode, or just after a reset
        for _ in range(20):
            _, _, terminated, truncated, _ = env.step(rng.uniform(low, high).astype(np.float32))
            if terminated or truncated or moment == 2:
                env.reset()
        module.restore_env(twin, module.env_state(env))
        for _ in range(120):
            action = rng.uniform(low, high).astype(np.float32)
            a, b = env.step(action), twin.step(action)
            np.testing.assert_array_equal(a[0], b[0])
            assert a[1:4] == b[1:4]
            if a[2] or a[3]:
                np.testing.assert_array_equal(env.reset()[0], twin.reset()[0])


def last_env(monkeypatch, module):
    """The environments that the next main() makes."""
    made, make_env = [], module.make_env
    monkeypatch.setattr(
        module, "make_env", lambda *a, **k: made.append(make_env(*a, **k)) or made[-1]
    )
    return made


def test_only_the_environments_copy_of_an_action_is_clipped(module, monkeypatch):
    made = last_env(monkeypatch, module)
    seen = []
    logprob = module.gaussian_logprob
    monkeypatch.setattr(
        module,
        "gaussian_logprob",
        lambda a, *rest: seen.append(a.abs().max().item()) or logprob(a, *rest),
    )
    module.main(small_args(module, env_id="Counter-v0", log_std_init=0.0))  # the std is 1
    assert np.abs(made[0].unwrapped.actions).max() == 1.0
    assert seen[0] > 1.5


@pytest.mark.parametrize("env_id,deaths", [("Counter-v0", True), ("CounterTimeLimit-v0", False)])
def test_episode_ends_reach_the_advantages_as_they_are(module, monkeypatch, env_id, deaths):
    """Three steps per episode; next_obs is the last observation 3, never the reset's 0."""
    calls, compute_gae = [], module.compute_gae
    monkeypatch.setattr(
        module, "compute_gae", lambda *a: calls.append(copy.deepcopy(a)) or compute_gae(*a)
    )
    module.main(small_args(module, env_id=env_id, norm_reward=False, run_dir="a", num_envs=2))
    rewards, values, next_values, terminated, ended = calls[0][:5]
    assert (rewards == 1).all()  # no fake step after an episode's end
    expected = np.arange(1, 129) % 3 == 0
    assert (ended == expected[:, None]).all()
    assert (terminated == (ended if deaths else 0)).all()
    inside = ~expected[:-1]
    np.testing.assert_allclose(next_values[:-1][inside], values[1:][inside], atol=1e-6)
    assert np.abs(next_values[:-1][~inside] - values[1:][~inside]).min() > 1e-4
    assert {row[2:] for row in episodes("a")} == {("3.0", "3")}


def test_returns_are_logged_raw_whatever_is_learnt_from(module):
    for name, norm in (("a", True), ("b", False)):
        module.main(
            small_args(module, env_id="Counter-v0", run_dir=name, norm_reward=norm, gamma=0.5)
        )
    assert {row[2] for row in episodes("a")} == {row[2] for row in episodes("b")} == {"3.0"}


def test_log_std_schedule_is_linear_and_not_learnt(module):
    if "log_std_schedule" not in module.Args.__dataclass_fields__:
        pytest.skip("a flag of PPO")
    module.main(small_args(module, log_std_schedule=(-0.5, -1.5), run_dir="a"))
    torch.testing.assert_close(parameters("a")["log_std"], torch.tensor([-1.5]))


# ------------------------------------------------------------------------------------------ resume
def interrupted(module, after: int, **changes):
    """Run `after` iterations, then leave as Ctrl-C does."""
    report, count = module.report, []

    def stop_later(*args):
        report(*args)
        count.append(1)
        if len(count) == after:
            module.stop_signals.append(signal.SIGINT)

    module.report = stop_later
    try:
        with pytest.raises(SystemExit) as stop:
            module.main(small_args(module, **changes))
        assert stop.value.code == 128 + signal.SIGINT
    finally:
        module.report = report
        module.stop_signals.clear()


@pytest.mark.parametrize("changes", [{}, {"num_envs": 2, "env_id": "Hopper-v5"}])
def test_an_interrupted_run_resumes_to_the_same_end(module, changes):
    module.main(small_args(module, run_dir="straight", **changes))
    interrupted(module, 3, run_dir="b", **changes)
    assert json.loads(Path("b/result.json").read_text())["status"] == "interrupted"
    result = module.main(module.Args(resume="b"))
    assert result["status"] == "finished"
    assert_same_run("straight", "b")
    for tag in ("losses/kl_old_new", "losses/value_loss"):
        assert scalars("b", tag) == scalars("straight", tag)


def test_all_objectives_resume(module):
    if "objective" not in module.Args.__dataclass_fields__:
        pytest.skip("PPO's")
    changes = {"objective": "kl-adaptive", "kl_target": 0.003}
    module.main(small_args(module, run_dir="straight", **changes))
    interrupted(module, 5, run_dir="b", **changes)
    module.main(module.Args(resume="b"))
    assert_same_run("straight", "b")
    assert scalars("b", "charts/beta") == scalars("straight", "charts/beta")


def test_kill_9_at_random_moments_loses_nothing(script, tmp_path):
    """Kill and resume until it is through; rows after the checkpoint must not come twice."""
    words = small_flags(total_timesteps=128 * 150)
    assert run(script, *words, "--run-dir", "straight", cwd=tmp_path).returncode == 0
    rng, kills = random.Random(0), 0
    words += ["--run-dir", "b"]
    for _ in range(20):
        process = subprocess.Popen(
            command(script, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
        )
        while process.poll() is None and not Path(tmp_path, "b", "episodes.csv").exists():
            time.sleep(0.01)
        first = Path(tmp_path, "b", "checkpoint.pt")
        while process.poll() is None and not first.exists():
            time.sleep(0.01)
        try:
            process.wait(rng.uniform(0.0, 1.5) if kills < 4 else 300)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        if process.returncode == 0:
            break
        words = ["--resume", "b"]
    assert process.returncode == 0 and kills > 0
    assert_same_run(tmp_path / "straight", tmp_path / "b")
    steps = [step for step, _ in scalars(tmp_path / "b", "losses/kl_old_new")]
    assert steps == list(range(128, 128 * 150 + 1, 128))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_say_how_to_go_on(script, tmp_path, number):
    words = [*small_flags(total_timesteps=10**6, save_every=10**6), "--run-dir", "a"]
    process = subprocess.Popen(
        command(script, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    checkpoint = tmp_path / "a" / "checkpoint.pt"
    while not checkpoint.exists():
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in err
    assert "--resume a" in out
    saved = torch.load(checkpoint, weights_only=True)["run"]
    assert saved["iteration"] > 1 and saved["global_step"] == (saved["iteration"] - 1) * 128


def test_resuming_a_finished_run_changes_nothing(module):
    first = module.main(small_args(module, run_dir="a"))
    rows = episodes("a")
    again = module.main(module.Args(resume="a"))
    assert again["score"] == first["score"] and episodes("a") == rows


def test_a_run_killed_before_its_first_checkpoint_starts_again(module):
    module.main(small_args(module, run_dir="a"))
    module.start_run(small_args(module, run_dir="b"))
    module.main(module.Args(resume="b"))
    assert_same_run("a", "b")


def test_another_kind_of_environment_resumes_with_new_episodes(module):
    interrupted(module, 5, run_dir="a", env_id="Counter-v0")
    assert module.main(module.Args(resume="a"))["steps"] == 1280
    assert {row[2] for row in episodes("a")} == {"3.0"}


# ---------------------------------------------------------------------------------------- evaluate
def test_evaluate_plays_with_frozen_statistics_and_changes_nothing(module):
    module.main(small_args(module, run_dir="a"))
    before = Path("a/checkpoint.pt").read_bytes()
    first = module.main(module.Args(evaluate="a", eval_episodes=3))
    assert len(first["returns"]) == 3 and first["mean"] == pytest.approx(np.mean(first["returns"]))
    assert module.main(module.Args(evaluate="a", eval_episodes=3)) == first
    assert module.main(module.Args(evaluate="a", eval_episodes=3, seed=9)) != first
    assert Path("a/checkpoint.pt").read_bytes() == before


def test_capture_video_films_the_first_episode(script, tmp_path, module):
    module.main(small_args(module, run_dir="a", total_timesteps=256))
    done = run(script, *flags(evaluate="a", eval_episodes=2), "--capture-video", cwd=tmp_path)
    if done.returncode == 2 and "needs a screen, EGL or OSMesa" in done.stderr:
        pytest.skip("this machine cannot render")
    assert done.returncode == 0, done.stderr
    (video,) = Path("a").glob("*.mp4")
    assert video.stat().st_size > 1000 and video.read_bytes()[4:8] == b"ftyp"


def test_the_camera_follows_where_there_is_one_that_can(module, monkeypatch):
    """The default camera of HalfCheetah-v5 stays where it is, and films an empty floor."""
    filmed = []
    monkeypatch.setattr(gym.wrappers, "RecordVideo", lambda env, *a, **k: filmed.append(env) or env)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    for env_id in ("HalfCheetah-v5", "Reacher-v5"):
        module.main(small_args(module, run_dir=env_id, env_id=env_id, total_timesteps=128))
        module.main(module.Args(evaluate=env_id, eval_episodes=1, capture_video=True))
    cameras = [env.unwrapped.mujoco_renderer.camera_id for env in filmed]
    assert cameras[0] >= 0 and cameras[1] == -1


# --------------------------------------------------------------------------------------- bad input
BAD = [
    ({"total_timesteps": 100}, ["--total-timesteps 100", "num_envs * num_steps = 128"]),
    ({"num_steps": 0}, ["--num-steps 0", "1 or more"]),
    ({"num_envs": -1}, ["--num-envs -1", "1 or more"]),
    ({"gamma": 1.01}, ["--gamma 1.01", "from 0 to 1"]),
    ({"gae_lambda": float("nan")}, ["--gae-lambda nan", "from 0 to 1"]),
    ({"adam_eps": float("nan")}, ["--adam-eps nan", "above 0"]),
    ({"adam_eps": 0.0}, ["--adam-eps 0.0", "above 0"]),
    ({"seed": -1}, ["--seed -1", "from 0"]),
    ({"save_every": 0}, ["--save-every 0", "1 or more"]),
    ({"env_id": "CartPole-v1"}, ["--env-id CartPole-v1", "Discrete(2)"]),
    ({"env_id": "HalfCheta-v5"}, ["--env-id HalfCheta-v5", "HalfCheetah"]),
    ({"env_id": "Nothing-v0"}, ["--env-id Nothing-v0", "doesn't exist"]),
    ({"eval_episodes": 3}, ["--eval-episodes 3", "leave it out"]),
    ({"minibatch_size": 33}, ["--minibatch-size 33", "= 128; nearest is 32"]),
    ({"minibatch_size": 1}, ["--minibatch-size 1", "2 or more"]),
    ({"num_steps": 1, "total_timesteps": 10}, ["--minibatch-size 32", "nearest is none"]),
    ({"run_dir": "/proc/no"}, ["--run-dir /proc/no", "another folder"]),
]
BAD_PPO = [
    ({"max_grad_norm": -0.5}, ["--max-grad-norm -0.5", "0 or more"]),
    ({"num_epochs": 0}, ["--num-epochs 0", "1 or more"]),
    ({"objective": "none", "clip_coef": 0.1}, ["--clip-coef 0.1", "leave it out"]),
    ({"objective": "kl-fixed", "kl_target": 0.1}, ["--kl-target 0.1", "leave it out"]),
    ({"kl_beta": 3.0}, ["--kl-beta 3.0", "leave it out"]),
    ({"objective": "kl-adaptive", "clip_vloss": True}, ["--clip-vloss True", "leave it out"]),
    ({"objective": "kl-fixed", "kl_beta": -1.0}, ["--kl-beta -1.0", "above 0"]),
    ({"clip_coef": 0.0}, ["--clip-coef 0.0", "above 0"]),
]


def refused(module, capsys, args, words):
    with pytest.raises(SystemExit) as stop:
        module.main(args)
    line = capsys.readouterr().err
    assert stop.value.code == 2 and line.count("\n") == 1
    assert line.startswith(f"{module.__name__}.py: error: --")
    for word in words:
        assert word in line
    assert not Path("runs").exists()


@pytest.mark.parametrize("changes,words", BAD)
def test_bad_input_is_refused_in_one_line(module, capsys, changes, words):
    refused(module, capsys, small_args(module, **changes), words)


@pytest.mark.parametrize("changes,words", BAD_PPO)
def test_bad_input_of_ppo_is_refused_in_one_line(capsys, changes, words):
    refused(ppo, capsys, small_args(ppo, **changes), words)


BAD_OTHERS = [
    (vpg, {"learning_rate": float("nan")}, ["--learning-rate nan", "above 0"]),
    (vpg, {"num_value_epochs": 0}, ["--num-value-epochs 0", "1 or more"]),
    (vpg, {"adaptive_lr": False, "lr_kl_target": 0.1}, ["--lr-kl-target 0.1", "leave it out"]),
    (trpo, {"max_kl": 0.0}, ["--max-kl 0.0", "above 0"]),
    (trpo, {"cg_iters": 0}, ["--cg-iters 0", "1 or more"]),
    (trpo, {"cg_damping": -0.1}, ["--cg-damping -0.1", "0 or more"]),
    (trpo, {"value_learning_rate": float("inf")}, ["--value-learning-rate inf", "above 0"]),
]


@pytest.mark.parametrize("algorithm,changes,words", BAD_OTHERS)
def test_bad_input_of_the_others_is_refused_in_one_line(capsys, algorithm, changes, words):
    refused(algorithm, capsys, small_args(algorithm, **changes), words)


def test_bad_input_on_the_command_line(script, tmp_path):
    for words in (["--num-steps", "0"], ["--adam-eps", "much"], ["--compile", "maybe"]):
        done = run(script, *words, cwd=tmp_path)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert words[0] in done.stdout + done.stderr or words[1] in done.stdout + done.stderr
    assert not any(tmp_path.iterdir())


def test_folders_that_are_no_runs_are_refused(module, capsys):
    Path("empty").mkdir()
    for mode in ("resume", "evaluate"):
        for folder in ("empty", "nowhere"):
            refused(module, capsys, module.Args(**{mode: folder}), [f"--{mode} {folder}", "run"])
    module.main(small_args(module, run_dir="a", total_timesteps=256))
    capsys.readouterr()
    refused(module, capsys, small_args(module, run_dir="a"), ["--run-dir a", "holds a run"])
    refused(module, capsys, module.Args(resume="a", seed=3), ["--seed 3", "leave it out"])
    refused(module, capsys, module.Args(evaluate="a", env_id="Ant-v5"), ["--env-id Ant-v5"])
    module.start_run(small_args(module, run_dir="young"))
    refused(module, capsys, module.Args(evaluate="young"), ["no checkpoint.pt"])
    for damage in (b"", b"garbage", Path("a/checkpoint.pt").read_bytes()[:2000]):
        Path("a/checkpoint.pt").write_bytes(damage)
        refused(module, capsys, module.Args(evaluate="a"), ["--evaluate a", "is damaged"])
        refused(module, capsys, module.Args(resume="a"), ["--resume a", "is damaged"])
    config = json.loads(Path("a/config.json").read_text())
    Path("a/config.json").write_text(json.dumps({**config, "script": "other"}))
    refused(module, capsys, module.Args(evaluate="a"), ["is a run of other.py"])
    Path("a/config.json").write_text("{")
    refused(module, capsys, module.Args(evaluate="a"), ["is damaged"])


# --------------------------------------------------------------------------------------- bad days
@pytest.mark.parametrize("bad", ["observation", "reward"])
def test_nan_from_the_environment_stops_the_run_and_says_where(module, bad):
    gym.register("Bad-v0", "conftest:Counter", kwargs={"bad": bad, "bad_step": 300})
    try:
        with pytest.raises(FloatingPointError, match=f"^{bad} .* step 300, seed 7"):
            module.main(small_args(module, env_id="Bad-v0", run_dir="a", seed=7))
    finally:
        del gym.registry["Bad-v0"]
    state = torch.load("a/checkpoint.pt", weights_only=True)
    assert state["run"]["global_step"] == 256  # the last good one
    assert all(torch.isfinite(p).all() for p in state["agent"].values())


def test_nan_in_the_policy_never_reaches_the_physics(module, monkeypatch):
    class Broken(module.Agent):
        def __init__(self, *args):
            super().__init__(*args)
            self.actor[4].bias.data.fill_(float("nan"))

    monkeypatch.setattr(module, "Agent", Broken)
    made = last_env(monkeypatch, module)
    with pytest.raises(FloatingPointError, match="^action .* step 1, seed 1"):
        module.main(small_args(module, env_id="Counter-v0"))
    assert made[0].unwrapped.actions == []


def test_nan_in_the_loss_stops_the_run(module, monkeypatch):
    monkeypatch.setattr(module, "whiten", lambda x: x * float("nan"))
    with pytest.raises(FloatingPointError, match="^loss.* step 128, seed 1"):
        module.main(small_args(module, run_dir="a"))
    assert torch.load("a/checkpoint.pt", weights_only=True)["run"]["global_step"] == 0


def test_a_failed_run_ends_in_one_line(script, tmp_path):
    os.symlink("/dev/full", tmp_path / "full")
    words = small_flags(total_timesteps=256)
    (tmp_path / "a").mkdir()
    os.symlink("/dev/full", tmp_path / "a" / "checkpoint.tmp")
    done = run(script, *words, "--run-dir", "a", cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr.splitlines()[-1]


def test_mujocos_warnings_do_not_litter(module, capfd, tmp_path):
    module.make_env("HalfCheetah-v5").close()
    assert capfd.readouterr().err == "" and not Path("MUJOCO_LOG.TXT").exists()


def test_without_a_compiler_training_goes_on(module, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("no C++ compiler\nlong story")

    monkeypatch.setattr(torch, "compile", broken)
    assert module.main(small_args(module, compile=True, total_timesteps=256))["steps"] == 256
    err = capsys.readouterr().err
    assert "going on without it (no C++ compiler)" in err and "long story" not in err


# ---------------------------------------------------------------------------------------- learning
LEARNS = [  # script, arguments, steps: what it needs to clear the bar with a margin
    ("vpg_continuous", {}, 40960),
    ("ppo_continuous", {"objective": "clip"}, 40960),
    ("ppo_continuous", {"objective": "kl-fixed"}, 40960),
    ("ppo_continuous", {"objective": "kl-adaptive"}, 40960),
    ("ppo_continuous", {"objective": "none"}, 40960),
    ("trpo_continuous", {}, 30720),
]


@pytest.mark.parametrize("name,changes,steps", LEARNS)
def test_it_learns_to_balance_a_pendulum(name, changes, steps):
    """An untrained policy falls after about 6 steps, the longest episode is 1000."""
    module = importlib.import_module(name)
    args = {"env_id": "InvertedPendulum-v5", "total_timesteps": steps, "run_dir": "a", **changes}
    module.main(module.Args(**args))
    score = module.main(module.Args(evaluate="a", eval_episodes=10))["mean"]
    assert score >= 800, score
