"""The benchmark runner and its reports: statistics by oracles, accidents by having them."""

import contextlib
import csv
import dataclasses
import functools
import importlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
import tyro
from conftest import ROOT, flags, scalars
from PIL import Image

import ppo_continuous
from benchmarks import atari, figures, random_policy, report, rlhf, run
from benchmarks.suites import (
    ALL_OFF,
    ATARI_SUITES,
    DETAILS,
    MUJOCO,
    SUITES,
    TABLE1,
    Run,
    runs_of,
    suite_of,
)

KILLS = int(os.environ.get("KILLS", 3))  # of the runner, in the test that kills it

# A script with the command line of the real ones that needs no torch: 20 iterations that sleep,
# a checkpoint after each, a return of seed + total_timesteps / 1000 + iteration.
TOY = """
import json, os, signal, sys, time
from pathlib import Path
words, flags = sys.argv[1:], {}
while words:
    name = words.pop(0)
    flags[name] = words.pop(0) if words and words[0][:2] != "--" else True
resumed = "--resume" in flags
folder = Path(flags["--resume"] if resumed else flags["--run-dir"])
if resumed:
    flags = json.loads((folder / "config.json").read_text())["args"]
else:
    versions = {"gymnasium": "1.4.0", "mujoco": "4.0.0"}
    config = {"script": "toy", "args": flags, "versions": versions}
    (folder / "config.json").write_text(json.dumps(config))
state = {"iteration": 0, "rows": "step,env,return,length,seconds\\n", "starts": 0}
if (folder / "state.json").exists():
    state = json.loads((folder / "state.json").read_text())
state["starts"] += 1
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
total = int(flags["--total-timesteps"])
while state["iteration"] < 20 and not stopped:
    time.sleep(float(os.environ.get("TOY_SECONDS", 0)))
    state["iteration"] += 1
    step = total * state["iteration"] // 20
    score = int(flags["--seed"]) + total / 1000 + state["iteration"]
    state["rows"] += f"{step},0,{score},1,0.1\\n"
    (folder / "new.json").write_text(json.dumps(state))
    os.replace(folder / "new.json", folder / "state.json")
    (folder / "episodes.csv").write_text(state["rows"])
    print(f"step {step}/{total}  return {score}  100 steps/s", flush=True)
status = "finished" if state["iteration"] == 20 else "interrupted"
result = {"status": status, "steps": total, "score": score, "episodes": 20, "seconds": 1.0}
(folder / "result.json").write_text(json.dumps(result))
signal.signal(signal.SIGINT, signal.SIG_DFL)
time.sleep(float(os.environ.get("TOY_LINGERS", 0)))
sys.exit(0 if status == "finished" else 130)
"""


@pytest.fixture(autouse=True)
def same_signal_handlers():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before):
        signal.signal(number, handler)


@pytest.fixture
def toy(tmp_path) -> Path:
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path / "toy.py"


def arguments(tmp_path, **changes) -> run.Args:
    defaults = {"suite": "quick", "workers": 2}
    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    return run.Args(**{**defaults, **folders, **changes})


def exit_code(args: run.Args) -> int:
    try:
        return run.main(args)
    except SystemExit as error:
        return error.code


def lines(tmp_path, name="quick@toy") -> dict[str, dict]:
    """Lines of a results file by key; each is there once and is compact JSON."""
    found = {}
    for line in (tmp_path / "results" / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert json.dumps(row, separators=(",", ":")) == line
        assert row["key"] not in found
        found[row["key"]] = row
    return found


def command(tmp_path, *words) -> list[str]:
    folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    return [sys.executable, "-m", "benchmarks.run", *map(str, words), *folders]


# ------------------------------------------------------------------------------------------ suites
def test_sizes_of_the_suites():
    sizes = {name: len(runs_of(suite)) for name, suite in SUITES.items()}
    assert sizes == {
        "table1": 231,
        "quick": 4,
        "random": 63,
        "figure3": 42,
        "details": 84,
        "defaults": 36,
        "table1-2017": 12,
        "humanoid": 3,
        "atari": 147,
        "atari-small": 2,
        "atari-bf16": 2,
        "rlhf": 39,
    }


def test_keys_are_unique_and_the_first_seed_comes_first():
    for suite in SUITES.values():
        runs = runs_of(suite)
        assert len({r.key for r in runs}) == len(runs) == len({r.command for r in runs})
        assert [r.seed for r in runs] == sorted(r.seed for r in runs)


@pytest.mark.parametrize("name", SUITES)
def test_every_command_is_one_that_its_script_takes(name):
    for planned in runs_of(SUITES[name]):
        path, *words = planned.command.split()
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        args = tyro.cli(module.Args, args=[*words, "--run-dir", "x"])
        if hasattr(module, "check_args"):
            module.check_args(args)
        if SUITES[name].steps:
            assert args.total_timesteps == SUITES[name].budget(planned.env)
        if SUITES[name].env_flag:
            assert args.env_id == planned.env
        assert args.seed == planned.seed


def test_budgets_of_a_suite_that_has_one_per_environment():
    suite = SUITES["atari-small"]
    assert [run.command for run in runs_of(suite)] == [
        "ppo_atari.py --env-id Pong --seed 1 --total-timesteps 4000000",
        "ppo_atari.py --env-id Breakout --seed 1 --total-timesteps 1000000",
    ]
    assert {run.command.split()[-1] for run in runs_of(suite, steps=2048)} == {"2048"}
    assert {run.command.split()[-1] for run in runs_of(SUITES["atari"])} == {"10000000"}
    assert SUITES["random"].budget("Hopper-v5") is None


def test_settings_of_table_1_are_what_their_names_say():
    assert list(TABLE1) == list(report.PAPER)
    objectives = {"clip": "clip_coef", "adaptive": "kl_target", "fixed": "kl_beta"}
    for setting, line in TABLE1.items():
        args = tyro.cli(ppo_continuous.Args, args=line.split()[1:])
        kind, _, value = setting.partition("-")
        assert args.objective.removeprefix("kl-") == kind
        if kind != "none":
            assert getattr(args, objectives[kind]) == float(value)
            assert report.PAPER[setting][0].endswith(f"= {value}")
        changed = {k for k, v in vars(args).items() if v != getattr(ppo_continuous.Args, k)}
        assert changed <= {"objective", "clip_coef", "kl_target", "kl_beta"}


def test_details_are_those_that_the_script_says_are_not_in_the_paper():
    text, flag = ppo_continuous.__doc__, r"--[a-z-]+(?: \d\S*)?"
    named = re.findall(flag, text[text.index("on: ") : text.index("off: ")])
    assert len(named) >= 7
    assert set(named) == {line.partition(" ")[2] for line in DETAILS.values()}
    assert set(named) == set(re.findall(flag, ALL_OFF))


def test_unknown_results_name():
    assert suite_of("table1@fork@5000") is SUITES["table1"]
    assert suite_of("table1-2017") is SUITES["table1-2017"]
    with pytest.raises(KeyError, match="no suite table2: take one of table1"):
        suite_of("table2")


# ------------------------------------------------------------------------------------------ digest
def test_digest_sees_code_and_neither_comments_nor_docstrings(tmp_path):
    script = tmp_path / "script.py"

    def of(text):
        script.write_text(text)
        return run.digest(script)

    code = 'def f(x: int = 1):\n    return "text", x\n'
    with_words = (
        '"""Module."""\n# comment\ndef f(x: int = 1):\n    """Doc."""\n    return "text", x\n'
    )
    assert of(code) == of(with_words)
    for changed in (code.replace("1", "2"), code.replace('"text"', '"other"'), code + "f(3)\n"):
        assert of(changed) != of(code)
    assert of("a = [1, [2]]") != of("a = [[1], 2]")
    assert of("x = None") != of("x: None")


def test_digest_of_the_random_policies_sees_the_script_that_they_import(tmp_path, monkeypatch):
    for name in ("ppo_continuous.py", "benchmarks/random_policy.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    before = run.digest(tmp_path / "benchmarks/random_policy.py")
    assert before == run.digest(ROOT / "benchmarks/random_policy.py")
    with open(tmp_path / "ppo_continuous.py", "a") as file:
        file.write("changed = True\n")
    assert before != run.digest(tmp_path / "benchmarks/random_policy.py")


# ------------------------------------------------------------------------------------ results file
def test_append_is_whole_or_not_at_all_on_a_full_disk(tmp_path):
    path = tmp_path / "r.jsonl"
    run.append_line(path, {"key": "a"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, limits[1]))
    try:
        with pytest.raises(OSError, match="5 of 12 bytes"):
            run.append_line(path, {"key": "b"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == '{"key":"a"}\n'
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match="No space left"):
            run.append_line(Path("/dev/full"), {"key": "b"})


def test_half_written_last_line_is_cut_off(tmp_path):
    path = tmp_path / "r.jsonl"
    assert not run.cut_half_line(path)
    path.write_text('{"key":"a"}\n{"key":"b","sco')
    assert [row["key"] for row in run.read_results(path)] == ["a"]
    assert run.cut_half_line(path)
    assert path.read_text() == '{"key":"a"}\n'
    assert not run.cut_half_line(path)


@pytest.mark.parametrize(
    "text, said",
    [
        ('{"key":"a"}\n{"key"\n', "line 2, is damaged"),
        ('{"key":"a"}\n3\n', "line 2, is damaged"),
        ('{"key":"a"}\n\x00\x00\n', "line 2, is damaged"),
        ('{"key":"a"}\n{"key":"b"}\n{"key":"a"}\n', "line 3: a is there twice"),
    ],
)
def test_damaged_results_are_refused_with_their_line(tmp_path, text, said):
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(ValueError, match=said):
        run.read_results(tmp_path / "r.jsonl")


def test_rewrite_replaces_everything(tmp_path):
    path = tmp_path / "r.jsonl"
    for key in "abc":
        run.append_line(path, {"key": key})
    run.rewrite(path, [{"key": "c"}, {"key": "d"}])
    assert path.read_text() == '{"key":"c"}\n{"key":"d"}\n'
    run.rewrite(path, [])
    assert path.read_text() == ""


# ------------------------------------------------------------------------------------ finished run
def test_learning_curve_is_the_mean_over_equal_windows():
    # 400 steps in 200 windows of 2: steps 1 and 2 are window 0, 3 and 4 are window 1, ...
    curve = run.learning_curve([1, 2, 3, 400], [1.0, 2.0, 7.0, 9.0], 400)
    assert len(curve) == 200
    assert (curve[0], curve[1], curve[199]) == (1.5, 7.0, 9.0)
    assert curve[2:199] == [None] * 197
    assert run.learning_curve([], [], 400) == [None] * 200


def test_progress_is_read_from_a_log_with_garbage(tmp_path):
    log = tmp_path / "log.txt"
    assert run.last_progress(log, "starting") == (0.0, "starting")
    garbage = bytes(range(256))
    log.write_bytes(garbage + b"\nstep 512/2048  return -3.5  900 steps/s\n" + garbage)
    assert run.last_progress(log, "starting") == (0.25, "return -3.5  900 steps/s")


def test_time_left():
    assert run.time_left(10, 0, 5) == "?"
    assert run.time_left(3600, 1, 3) == "2:00"
    assert run.time_left(600, 10, 13) == "0:03"


def test_a_line_holds_what_a_run_was_and_no_path_of_the_machine(tmp_path):
    planned = runs_of(SUITES["quick"], steps=2048)[0]
    words = [*planned.command.split()[1:], "--run-dir", str(tmp_path / "x")]
    command = [sys.executable, str(ROOT / "ppo_continuous.py"), *words]
    subprocess.run(command, check=True, capture_output=True)
    row = run.result_line(planned, tmp_path / "x", "1234")
    assert str(tmp_path) not in json.dumps(row) and str(ROOT) not in json.dumps(row)
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert row["score"] == result["score"] and row["steps"] == 2048
    assert row["episodes"] == result["episodes"] and row["seconds"] == result["seconds"]
    assert set(row["args"]) == {f.name for f in dataclasses.fields(ppo_continuous.Args)} - {
        "run_dir",
        "resume",
    }
    with open(tmp_path / "x" / "episodes.csv") as file:
        returns = [float(r["return"]) for r in csv.DictReader(file)]
    assert row["fingerprint"]["returns"] == returns[:10]
    assert row["average"] == pytest.approx(sum(returns) / len(returns), rel=1e-12)
    assert row["fingerprint"]["loss"] == scalars(tmp_path / "x", "losses/policy_loss")[0][1]
    assert row["versions"]["mujoco"] and row["processor"] and row["digest"] == "1234"
    assert len(row["curve"]) == run.CURVE_POINTS


# ---------------------------------------------------------------------------- the runner, with toys
def test_runs_once_then_skips(tmp_path, toy, capfd):
    assert exit_code(arguments(tmp_path, script=toy, total_timesteps=2000)) == 0
    done = lines(tmp_path, "quick@toy@2000")
    assert set(done) == {r.key for r in runs_of(SUITES["quick"])}
    assert {row["score"] for row in done.values()} == {1 + 2 + 20}
    assert "[4/4]" in capfd.readouterr().out
    shutil.rmtree(tmp_path / "runs")  # so a second run would be noticed
    assert exit_code(arguments(tmp_path, script=toy, total_timesteps=2000)) == 0
    assert not list((tmp_path / "runs").glob("*/*"))
    assert lines(tmp_path, "quick@toy@2000") == done


def test_only_and_seeds_take_a_part(tmp_path, toy):
    only = ("env=Reacher-v5", "setting=none", "setting=clip-0.2")
    assert exit_code(arguments(tmp_path, script=toy, only=only, seeds=(7, 8, 7))) == 0
    expected = {f"{s}/Reacher-v5/{n}" for s in ("none", "clip-0.2") for n in (7, 8)}
    assert set(lines(tmp_path)) == expected


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"suite": "table2"}, "no suite table2: take one of table1, quick"),
        ({"only": ("env=Hopper-v5",)}, "--only env=Hopper-v5: give one of InvertedPendulum-v5"),
        ({"only": ("game=Pong",)}, "--only game=Pong: give env=, setting= or seed="),
        ({"only": ("Reacher-v5",)}, "--only Reacher-v5: give env="),
        ({"workers": 0}, "--workers 0: must be 1 or more"),
        ({"script": Path("fork.py")}, "--script fork.py: no such file"),
        ({"suite": "random", "total_timesteps": 5}, "--total-timesteps 5: random cannot have it"),
        ({"results": Path("file/results")}, "file/results cannot be written: Not a directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, changes, said):
    (tmp_path / "file").touch()
    assert exit_code(arguments(tmp_path, **changes)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_script_for_a_suite_that_compares_scripts_is_refused(tmp_path, toy, capsys, monkeypatch):
    assert exit_code(arguments(tmp_path, suite="random", script=toy, only=("seed=9",))) == 2
    monkeypatch.setitem(
        SUITES, "two", dataclasses.replace(SUITES["quick"], settings={"a": "a.py", "b": "b.py"})
    )
    assert exit_code(arguments(tmp_path, suite="two", script=toy)) == 2
    assert "two compares scripts" in capsys.readouterr().err


BAD_SCRIPTS = {
    "crash at step 0": ("raise SystemExit('no such luck')", "exit code 1", "no such luck"),
    "garbage": ("print(bytes(range(256)) * 99, '\\\\x00')", "left no result", "has no result.json"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "exit code -9", "it printed nothing"),
}


@pytest.mark.parametrize("name", BAD_SCRIPTS)
def test_a_failing_run_is_shown_and_does_not_stop_the_others(tmp_path, toy, capfd, name):
    code, *said = BAD_SCRIPTS[name]
    condition = "import sys\nif 'Reacher-v5' in sys.argv and 'none' in sys.argv:"
    bad = f"{condition}\n    {code}\n    sys.exit()\n"
    toy.write_text(bad + TOY)
    assert exit_code(arguments(tmp_path, script=toy)) == 1
    assert len(lines(tmp_path)) == 3
    output = capfd.readouterr().out
    for words in ("none/Reacher-v5/1: FAILED", "1 of 4 runs failed", *said):
        assert words in output
    toy.write_text(TOY)  # repaired: the other three are now of another version
    assert exit_code(arguments(tmp_path, script=toy)) == 1
    assert "3 of 4 results are stale" in capfd.readouterr().out


@pytest.mark.parametrize("score", ["NaN", "null", '"high"'])
def test_a_run_without_a_score_is_no_result(tmp_path, toy, score):
    toy.write_text(
        TOY.replace(
            "(json.dumps(result))",
            f"(json.dumps(result | {{'score': {score}}}))".replace("null", "None").replace(
                "NaN", "float('nan')"
            ),
        )
    )
    assert exit_code(arguments(tmp_path, script=toy)) == 1
    assert lines(tmp_path) == {}


def test_full_disk_at_the_results_loses_nothing(tmp_path, toy, capfd, monkeypatch):
    def full(path, row):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "append_line", full)
    assert exit_code(arguments(tmp_path, script=toy)) == 1
    assert "done but not recorded, [Errno 28] No space left on device" in capfd.readouterr().out
    monkeypatch.undo()
    toy_starts = {p: p.read_text() for p in (tmp_path / "runs").rglob("state.json")}
    os.chdir(tmp_path)
    assert exit_code(arguments(tmp_path, script=toy)) == 0
    assert len(lines(tmp_path)) == 4
    assert toy_starts == {p: p.read_text() for p in (tmp_path / "runs").rglob("state.json")}


def test_half_written_line_is_recorded_again_without_a_run(tmp_path, toy, capfd):
    assert exit_code(arguments(tmp_path, script=toy)) == 0
    before, path = lines(tmp_path), tmp_path / "results" / "quick@toy.jsonl"
    os.truncate(path, path.stat().st_size - 40)
    states = {p: p.read_text() for p in (tmp_path / "runs").rglob("state.json")}
    assert exit_code(arguments(tmp_path, script=toy)) == 0
    assert "dropped a half-written last line" in capfd.readouterr().out
    assert lines(tmp_path) == before
    assert states == {p: p.read_text() for p in (tmp_path / "runs").rglob("state.json")}


def test_results_of_another_mujoco_are_refused(tmp_path, toy, capsys):
    toy.write_text(TOY.replace('"mujoco": "4.0.0"', '"mujoco": "3.9"'))
    assert exit_code(arguments(tmp_path, script=toy)) == 0
    assert exit_code(arguments(tmp_path, script=toy)) == 2
    assert "holds results of mujoco 3.9, here it is" in capsys.readouterr().err


def test_results_of_another_ale_py_are_refused(tmp_path, toy, capsys):
    toy.write_text(TOY.replace('"mujoco": "4.0.0"', '"ale-py": "0.11"'))
    args = arguments(tmp_path, suite="atari-small", script=toy)
    assert exit_code(args) == 0
    assert exit_code(args) == 2
    assert "holds results of ale-py 0.11, here it is" in capsys.readouterr().err


@pytest.mark.parametrize("suite, threads, workers", [("quick", "1", 5), ("atari-small", "7", 1)])
def test_runs_that_use_every_core_come_one_by_one(
    tmp_path, toy, monkeypatch, suite, threads, workers
):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # the user's
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    seen, pool = [], run.ThreadPoolExecutor
    monkeypatch.setattr(run, "ThreadPoolExecutor", lambda n: seen.append(n) or pool(n))
    versions = '"gymnasium": "1.4.0", "threads": os.environ["OMP_NUM_THREADS"]'
    toy.write_text(TOY.replace('"gymnasium": "1.4.0", "mujoco": "4.0.0"', versions))
    assert exit_code(arguments(tmp_path, suite=suite, script=toy, workers=None)) == 0
    rows = lines(tmp_path, f"{suite}@toy").values()
    assert {row["versions"]["threads"] for row in rows} == {threads}
    assert exit_code(arguments(tmp_path, suite=suite, script=toy, workers=3)) == 0
    assert seen == [workers, 3]


def test_a_device_is_passed_on_and_is_not_part_of_what_a_run_is(tmp_path, toy, capsys):
    args = arguments(tmp_path, suite="atari-small", script=toy, device="cuda")
    assert exit_code(args) == 0
    for row in lines(tmp_path, "atari-small@toy").values():
        assert row["args"]["--device"] == "cuda" and "--device" not in row["command"]
    capsys.readouterr()
    assert exit_code(dataclasses.replace(args, device=None)) == 0
    assert "2 runs, 2 of them done already" in capsys.readouterr().out
    assert exit_code(arguments(tmp_path, script=toy, device="cuda")) == 2
    assert "--device cuda: the scripts of quick run on the CPU" in capsys.readouterr().err


def test_two_runners_on_one_suite(tmp_path, toy, capsys):
    (tmp_path / "results").mkdir()
    with open(tmp_path / "results" / "quick@toy.lock", "w") as lock:
        assert run.try_lock(lock)
        assert exit_code(arguments(tmp_path, script=toy)) == 2
        assert "another runner is at work on quick@toy" in capsys.readouterr().err
        assert exit_code(arguments(tmp_path, script=toy, total_timesteps=100)) == 0
    assert exit_code(arguments(tmp_path, script=toy)) == 0


def test_stale_results_recheck_and_rerun(tmp_path, toy, capfd, monkeypatch):
    def start(**changes):
        code = exit_code(arguments(tmp_path, script=toy, total_timesteps=2000, **changes))
        return code, capfd.readouterr().out

    def now():
        return lines(tmp_path, "quick@toy@2000")

    assert start()[0] == 0
    before = now()
    toy.write_text("# a comment\n" + TOY)
    assert start()[0] == 0  # nothing is stale

    toy.write_text(TOY + "\nprint('a new log line')")  # never reached: the fingerprint stays
    code, said = start()
    assert code == 1 and "4 of 4 results are stale" in said and now() == before
    monkeypatch.setenv("TOY_LINGERS", "1")  # so it gets the signal when it is exiting already
    code, said = start(recheck=True)
    assert code == 0 and "4 of 4 stale results re-stamped" in said
    monkeypatch.delenv("TOY_LINGERS")
    digests = {row["digest"] for row in now().values()}
    assert digests == {run.digest(toy)} != {row["digest"] for row in before.values()}
    assert {k: {**row, "digest": 0} for k, row in now().items()} == {
        k: {**row, "digest": 0} for k, row in before.items()
    }
    assert start()[0] == 0

    # Now one setting changes its returns, from the second episode on, and the other doesn't.
    changed = "score = (state['iteration'] > 1 and 'none' == flags['--objective']) + "
    toy.write_text(TOY.replace("score = ", changed))
    code, said = start(recheck=True)
    assert code == 1 and "2 of 4 stale results re-stamped" in said
    assert "differs: return of episode 2 was 5.0, is 6.0" in said
    assert {k for k, row in now().items() if row["digest"] == run.digest(toy)} == {
        key for key in before if key.startswith("clip")
    }
    code, said = start(rerun_stale=True)
    assert code == 0 and "4 runs, 2 of them done already" in said
    assert {row["score"] for k, row in now().items() if k.startswith("none")} == {24}
    assert {row["score"] for k, row in now().items() if k.startswith("clip")} == {23}


def test_results_of_another_command_are_stale_and_not_re_stamped(tmp_path, toy, capfd, monkeypatch):
    assert exit_code(arguments(tmp_path, script=toy)) == 0
    settings = {**SUITES["quick"].settings, "none": "ppo_continuous.py --objective none --gamma .9"}
    changed = dataclasses.replace(SUITES["quick"], settings=settings)
    monkeypatch.setitem(SUITES, "quick", changed)
    assert exit_code(arguments(tmp_path, script=toy)) == 1
    assert "2 of 4 results are stale" in capfd.readouterr().out
    assert exit_code(arguments(tmp_path, script=toy, recheck=True)) == 1
    assert "0 of 2 stale results re-stamped" in capfd.readouterr().out


def test_a_script_that_changes_under_way_mixes_nothing(tmp_path, toy, capfd, monkeypatch):
    append = run.append_line

    def edit_after_the_first(path, row):
        append(path, row)
        toy.write_text(TOY + "edited = True\n")

    monkeypatch.setattr(run, "append_line", edit_after_the_first)
    monkeypatch.setenv("TOY_SECONDS", "0.05")
    assert exit_code(arguments(tmp_path, script=toy, workers=1)) == 1
    assert "its script has changed since the suite began" in capfd.readouterr().out
    toy.write_text(TOY)
    assert {row["digest"] for row in lines(tmp_path).values()} == {run.digest(toy)}


def test_first_difference_names_it():
    before = {"returns": [1.0, 2.0], "loss": 0.5}
    differ = run.first_difference
    assert (
        differ(before, {"returns": [1.0, 3.0], "loss": 0.5})
        == "return of episode 2 was 2.0, is 3.0"
    )
    assert differ(before, {"returns": [1.0], "loss": 0.5}) == "2 episodes were compared, now 1"
    assert differ(before, {**before, "loss": 0.6}) == "loss of iteration 1 was 0.5, is 0.6"


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def started(tmp_path) -> list[Path]:
    return list((tmp_path / "runs").rglob("state.json"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_stops_the_runs_which_then_go_on_from_their_checkpoints(tmp_path, toy, number):
    words = command(tmp_path, "quick", "--script", toy, "--workers", 2)
    slow = {**os.environ, "TOY_SECONDS": "0.4"}
    runner = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=slow)
    wait_for(lambda: len(started(tmp_path)) == 2)
    runner.send_signal(number)
    output, _ = runner.communicate(timeout=300)
    assert runner.returncode == 128 + number and "start again to go on" in output
    assert "FAILED" not in output
    results = [json.loads(p.read_text()) for p in (tmp_path / "runs").rglob("result.json")]
    assert [r["status"] for r in results] == ["interrupted"] * 2
    assert exit_code(arguments(tmp_path, script=toy)) == 0
    assert len(lines(tmp_path)) == 4
    starts = sorted(json.loads(p.read_text())["starts"] for p in started(tmp_path))
    assert starts == [1, 1, 2, 2]


def test_a_second_ctrl_c_kills_a_run_that_does_not_listen(tmp_path, toy):
    toy.write_text(TOY.replace("stopped.append(1)", "None"))
    words = command(tmp_path, "quick", "--script", toy, "--workers", 1)
    slow = {**os.environ, "TOY_SECONDS": "5"}
    runner = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=slow)
    wait_for(lambda: list((tmp_path / "runs").rglob("config.json")))
    runner.send_signal(signal.SIGINT)
    time.sleep(1)
    assert runner.poll() is None
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=300)
    assert runner.returncode == 130


def test_a_run_whose_runner_was_killed_goes_on_and_is_waited_for(tmp_path, toy):
    words = command(tmp_path, "quick", "--script", toy, "--workers", 1)
    slow = {**os.environ, "TOY_SECONDS": "0.3"}
    runner = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=slow)
    wait_for(lambda: len(started(tmp_path)) == 1)
    runner.kill()
    runner.wait()
    assert exit_code(arguments(tmp_path, script=toy)) == 0
    assert len(lines(tmp_path)) == 4
    assert [json.loads(p.read_text())["starts"] for p in started(tmp_path)] == [1] * 4


# ---------------------------------------------------------------------- the runner, with the script
def children(pid: int) -> list[int]:
    """Process ids of a process's children."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the runner's children in /proc")
def test_kill_9_of_the_runner_and_its_runs_loses_and_doubles_nothing(tmp_path):
    text = (ROOT / "ppo_continuous.py").read_text()
    fork = tmp_path / "fork.py"
    fork.write_text(text.replace("save_every: int = 20", "save_every: int = 1"))
    assert fork.read_text() != text
    words = ["quick", "--script", fork, "--total-timesteps", 6 * 2048, "--workers", 2]
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    subprocess.run(command(calm, *words), cwd=ROOT, check=True, capture_output=True)
    name, kills, moments = f"quick@fork@{6 * 2048}", 0, np.random.default_rng(0)
    while kills < KILLS:
        runner = subprocess.Popen(command(rough, *words), cwd=ROOT, stdout=subprocess.DEVNULL)
        while runner.poll() is None and not children(runner.pid):
            time.sleep(0.1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            runner.wait(moments.uniform(0, 12))
        if runner.poll() is not None:  # it had done everything: begin anew
            assert runner.returncode == 0
            shutil.rmtree(rough)
            continue
        runs = children(runner.pid)
        os.kill(runner.pid, signal.SIGKILL)
        for pid in runs[: len(runs) if kills % 2 == 0 else 1]:  # every other time one lives on
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        runner.wait()
        kills += 1
    subprocess.run(command(rough, *words), cwd=ROOT, check=True, capture_output=True)
    expected, found = lines(calm, name), lines(rough, name)
    assert set(found) == set(expected) == {r.key for r in runs_of(SUITES["quick"])}
    for key, row in expected.items():
        assert {**found[key], "seconds": 0} == {**row, "seconds": 0}


def test_recheck_with_the_real_script(tmp_path):
    """Takes the returns from episodes.csv, the loss from TensorBoard, and stops the replay."""
    fork = tmp_path / "fork.py"
    text = (ROOT / "ppo_continuous.py").read_text()
    fork.write_text(text)
    only = ("setting=none", "env=InvertedPendulum-v5")
    args = arguments(tmp_path, script=fork, total_timesteps=4096, only=only, workers=1)
    assert exit_code(args) == 0
    fork.write_text(text + "\nnothing = None\n")
    assert exit_code(args) == 1
    assert exit_code(dataclasses.replace(args, recheck=True)) == 0
    fork.write_text(text.replace("0.01)  # (..., O) -> (..., A)", "0.02)  # (..., O) -> (..., A)"))
    assert fork.read_text() != text
    assert exit_code(dataclasses.replace(args, recheck=True)) == 1


def test_make_quick_end_to_end(tmp_path):
    words = ["make", "quick", f"BIN={Path(sys.executable).parent}", "-o", ".venv/bench"]
    words += [f"QUICK={tmp_path}/quick", "BUDGET=8192"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("| no clipping or penalty | −0.39 |", "1: best single run"):
        assert words in done.stdout
    assert "4 runs, in sum" in done.stdout and "runs are missing" not in done.stdout
    for name in ("quick@8192.png", "quick@8192-curves.png"):
        assert Image.open(tmp_path / "quick" / name).width > 500
    assert len((tmp_path / "quick" / "quick@8192.jsonl").read_text().splitlines()) == 4


# --------------------------------------------------------------------------------- random policies
def test_the_untrained_policy_plays_the_first_iteration_of_the_script(tmp_path):
    random_policy.main(
        random_policy.Args(str(tmp_path / "a"), env_id="Hopper-v5", seed=3, episodes=20)
    )
    args = {"env_id": "Hopper-v5", "seed": 3, "total_timesteps": 2048, "compile": False}
    ppo_continuous.main(ppo_continuous.Args(run_dir=str(tmp_path / "b"), **args))
    ours, theirs = run.read_episodes(tmp_path / "a"), run.read_episodes(tmp_path / "b")
    assert len(ours[0]) == 20 < len(theirs[0])
    assert ours == (theirs[0][:20], theirs[1][:20])


def test_uniform_actions(tmp_path, monkeypatch):
    seen, make_env = [], ppo_continuous.make_env

    def recording(env_id):
        env = make_env(env_id)
        step = env.step
        env.step = lambda action: seen.append(action) or step(action)
        return env

    monkeypatch.setattr(random_policy.script, "make_env", recording)
    args = {"policy": "uniform", "env_id": "Hopper-v5"}
    first = random_policy.main(random_policy.Args(str(tmp_path / "a"), episodes=100, **args))
    actions = np.array(seen)  # (steps, 3)
    assert scipy.stats.kstest(actions.ravel(), scipy.stats.uniform(-1, 2).cdf).pvalue > 0.001
    assert first["score"] == np.mean(run.read_episodes(tmp_path / "a")[1])
    other = random_policy.main(
        random_policy.Args(str(tmp_path / "b"), episodes=100, seed=2, **args)
    )
    assert other["score"] != first["score"]


# -------------------------------------------------------------------------------------- statistics
def test_normalise():
    assert report.normalise(np.array([5.0, 10, 0, 20]), 5, 10).tolist() == [0, 1, -1, 3]


def test_iqm_is_scipys_trimmed_mean():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 4, 7, 21, 24):
        scores = rng.normal(size=(5, n))
        expected = scipy.stats.trim_mean(scores, 0.25, axis=1)
        np.testing.assert_allclose(report.iqm(scores), expected, rtol=1e-12)
    assert report.iqm(np.array([0.0, 1, 2, 100])) == 1.5
    assert np.isnan(report.iqm(np.array([0.0, 1, 2, np.nan])))


def test_bootstrap_against_all_resamples_there_are():
    scores = np.array([[0.0, 1.0, 5.0], [10.0, 14.0, 15.0]])  # (2 environments, 3 seeds)
    draws = list(itertools.product(range(3), repeat=3))
    means = [scores[0, [*a]].mean() / 2 + scores[1, [*b]].mean() / 2 for a in draws for b in draws]
    low, high = report.stratified_bootstrap(scores, report.mean, resamples=200_000)
    exact = np.percentile(means, (2.5, 97.5), method="inverted_cdf")
    np.testing.assert_allclose((low, high), exact, atol=0.17)  # neighbouring means: 1/6 apart
    assert low < np.mean(scores) < high


def test_bootstrap_of_many_is_the_normal_interval():
    scores = np.random.default_rng(1).normal(size=(20, 30)) + 100 * np.arange(20)[:, None]
    error = np.sqrt((scores.var(1) / 30).sum()) / 20  # of the mean, within environments only
    low, high = report.stratified_bootstrap(scores, report.mean)
    assert low == pytest.approx(scores.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(scores.mean() + 1.96 * error, abs=0.1 * error)


def test_bootstrap_is_stratified_and_repeats_itself():
    scores = np.array([[1.0, 1.0, 1.0], [50.0, 50.0, 50.0]])
    assert report.stratified_bootstrap(scores, report.mean) == (25.5, 25.5)
    scores = np.random.default_rng(2).normal(size=(7, 3))
    first = report.stratified_bootstrap(scores, report.iqm)
    assert first == report.stratified_bootstrap(scores, report.iqm)
    assert first != report.stratified_bootstrap(scores, report.iqm, seed=1)


def test_smooth_takes_what_is_there():
    curve = np.array([np.nan, 1.0, 2.0, 6.0, np.nan])
    np.testing.assert_array_equal(report.smooth(curve, 3), [1.0, 1.5, 3.0, 4.0, 6.0])
    np.testing.assert_array_equal(
        report.smooth(np.array([np.nan] * 3 + [4.0]), 3)[:2], [np.nan] * 2
    )


# ------------------------------------------------------------------------------------------ report
@functools.cache
def todays(script: Path) -> str:
    return run.digest(script)


def hand_made(folder: Path, name: str, score, skip=(), **changes) -> None:
    """Results of a whole suite; score(run) -> the score."""
    folder.mkdir(exist_ok=True)
    for planned in runs_of(SUITES[name]):
        if planned.key in skip:
            continue
        row = {"key": planned.key, "setting": planned.setting, "env": planned.env}
        row |= {"seed": planned.seed, "command": planned.command.replace("benchmarks/", "")}
        row |= {"args": {"total_timesteps": 1_000_000}, "steps": 999_424, "seconds": 100.0}
        row |= {"digest": todays(run.script_path(planned.command)), "episodes": 1000}
        row |= {"versions": {"gymnasium": "1.4.0", "mujoco": "4.0.0", "torch": "2.13.0+cpu"}}
        row |= {"processor": "Z80", "score": score(planned)}
        curve = np.linspace(0, row["score"], run.CURVE_POINTS)
        row |= {"curve": [None, *curve.tolist()[1:]]}
        run.append_line(folder / f"{name}.jsonl", row | changes)


# In environment e = 0, ..., 6: untrained 10 e, std 1 -100, uniform 10 e - 100, best 10 e + 100.
# So a score of 10 e + 100 x is x as it stands, and (x + 1) / 2 with uniform actions as zero.
def random_score(planned: Run) -> float:
    e = MUJOCO.index(planned.env)
    zero = {"untrained": 10 * e, "untrained-std-1": -100, "uniform": 10 * e - 100}[planned.setting]
    return zero + planned.seed - 2.0  # mean over the seeds: zero


SCALED = {  # of seeds 1, 2, 3
    "none": (-0.5, -0.4, -0.3),
    "clip-0.1": (0.7, 0.7, 0.7),
    "clip-0.2": (0.8, 0.9, 1.0),
}


def table_score(planned: Run) -> float:
    scaled = SCALED.get(planned.setting, (0.1, 0.2, 0.6))[planned.seed - 1]
    return 10 * MUJOCO.index(planned.env) + 100 * scaled


def made_report(folder: Path, *names, readme: str | None = None) -> tuple[int, Path]:
    """Make reports; the page docs/table1.md has the markers that README.md has."""
    docs = folder / "docs"
    docs.mkdir(exist_ok=True)
    if readme is not None:
        (folder / "README.md").write_text(readme)
        (docs / "table1.md").write_text(readme)
    args = report.Args(names, results=folder, docs=docs, readme=folder / "README.md")
    try:
        return report.main(args), docs
    except SystemExit as error:
        return error.code, docs


README = "before\n\n<!-- table1 -->\nold\n<!-- /table1 -->\n\nafter\n"


def row_of(text: str, start: str) -> list[str]:
    (line,) = [x for x in text.splitlines() if x.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_of_hand_made_results_is_the_hand_computed_one(tmp_path):
    hand_made(tmp_path, "random", random_score)
    hand_made(tmp_path, "table1", table_score, skip=["fixed-3/Hopper-v5/2"])
    code, docs = made_report(tmp_path, "table1", readme=README)
    summary, text = (tmp_path / "README.md").read_text(), (docs / "table1.md").read_text()
    for page in (summary, text):
        assert page.startswith("before") and page.endswith("after\n") and "old" not in page
        assert "7 environments × 3 seeds × 1,000,000 steps; gymnasium 1.4.0, mujoco 4.0.0" in page
        # 230 runs of 100 seconds
        assert "torch 2.13.0; 230 runs, in sum 6.4 hours of one core (Z80)." in page
        assert "1 of 231 runs are missing" in page
        assert "No other interval reaches that of clipping, ε = 0.2" in page
    scores, _, rest = text.partition("Returns, mean")
    returns, _, normalisers = rest.partition("What became")

    # Sorted, a row's 21 scaled scores are 7 times each of its three; without the 5 lowest and the
    # 5 highest, 2 + 7 + 2 of them remain, and their mean is the middle one for evenly spaced ones.
    assert row_of(scores, "clipping, ε = 0.1")[1:5] == ["0.76", "**0.70**", "[0.70, 0.70]", "0.70"]
    cells = row_of(scores, "clipping, ε = 0.2")
    assert cells[1:3] == ["0.82", "**0.90**"] and cells[4] == "0.90"
    assert cells[6:] == ["0.95"]  # (0.9 + 1) / 2
    # Std 1: -100 is zero, so 10 e + 90 becomes (10 e + 190) / (10 e + 200), averaged over e.
    assert cells[5] == f"{np.mean([(10 * e + 190) / (10 * e + 200) for e in range(7)]):.2f}"
    # The mean of 21 draws from (0.8, 0.9, 1.0), evenly: std sqrt(0.02 / 3 / 21) = 0.0178.
    low, high = map(float, cells[3].strip("[]").split(", "))
    assert low == pytest.approx(0.9 - 1.96 * 0.0178, abs=0.008)
    assert high == pytest.approx(0.9 + 1.96 * 0.0178, abs=0.008)
    cells = row_of(scores, "adaptive KL, d_targ = 0.01")
    assert cells[2] == "**0.30**"
    assert cells[4] == f"{(2 * 0.1 + 7 * 0.2 + 2 * 0.6) / 11:.2f}"  # 0.25, below the mean
    assert row_of(scores, "no clipping or penalty")[2] == "**−0.40**"
    assert row_of(scores, "fixed KL, β = 3")[2:] == ["20 of 21 runs", "–", "–", "–", "–"]
    # The summary's columns are the first four of the report's.
    for start in ("clipping, ε = 0.2", "no clipping or penalty", "fixed KL, β = 3"):
        assert row_of(summary, start) == row_of(scores, start)[:4]

    # Returns: the mean is 10 e + 90, the standard deviation of (80, 90, 100) is 10.
    cells = row_of(returns, "clipping, ε = 0.2")
    assert cells[1:] == ["90.00 ± 10.00", *(f"{10 * e + 90} ± 10" for e in range(1, 7))]
    assert row_of(returns, "fixed KL, β = 3")[2] == "2 of 3"
    assert row_of(normalisers, "0: untrained policy")[1:3] == ["0.00", "10.00"]
    assert row_of(normalisers, "0: uniform actions")[1:3] == ["−100", "−90.00"]
    assert row_of(normalisers, "1: best single run")[1:3] == ["100", "110"]
    for name in ("table1.png", "table1-curves.png"):
        assert f"({name})" in text and (docs / name).stat().st_size < 300_000


def test_settings_that_three_seeds_do_not_tell_apart_are_named(tmp_path):
    hand_made(tmp_path, "random", random_score)

    def score(planned: Run) -> float:
        bonus = {"none": -200, "clip-0.3": planned.seed == 3}.get(planned.setting, 0)
        return 90 + 10 * planned.seed + bonus

    hand_made(tmp_path, "table1", score)
    made_report(tmp_path, "table1", readme=README)
    (said,) = re.findall(
        r"The interval of (.*), the best, overlaps with those of: (.*)\.",
        (tmp_path / "README.md").read_text(),
    )
    assert said[0] == "clipping, ε = 0.3"
    assert "clipping, ε = 0.2" in said[1] and "no clipping" not in said[1]


def test_figure3_takes_ppo_from_table_1(tmp_path, capsys):
    hand_made(tmp_path, "random", random_score)
    hand_made(tmp_path, "table1", table_score)
    hand_made(tmp_path, "figure3", lambda planned: table_score(planned) - 10)
    readme = README.replace("table1", "figure3")
    code, docs = made_report(tmp_path, "figure3", readme=readme)
    said, summary = capsys.readouterr().out, (tmp_path / "README.md").read_text()
    assert row_of(summary, "ppo")[1:3] == ["90.00 ± 10.00", "100 ± 10"]
    # Published: HalfCheetah, Hopper, IDP, IP, Reacher, Swimmer, Walker2d
    cells = ["1,443", "2,383", "", "963", "", "", "2,288"]
    assert row_of(summary, "CleanRL (tag pr-424), -v4")[1:] == cells
    cells = ["1,669", "2,316", "7,103", "809", "−6.71", "111", "3,425"]
    assert row_of(summary, "OpenAI baselines ppo2, -v2")[1:] == cells
    assert code == 0 and row_of(said.partition("Returns")[0], "ppo")[1] == "**0.90**"
    assert row_of(said.partition("Returns")[0], "trpo")[1:2] == ["**0.20**"]
    assert (docs / "figure3.png").exists()


def test_bfloat16_beside_float32(tmp_path, capsys):
    versions = {"gymnasium": "1.4.0", "ale-py": "0.12.1", "torch": "2.13.0"}
    suite = SUITES["atari-small"]
    for seed in (1, 2):  # the suite itself has one seed, bfloat16 borrows two
        planned = next(r for r in runs_of(suite, (seed,)) if r.env == "Breakout")
        row = {"key": planned.key, "setting": "ppo", "env": "Breakout", "seed": seed}
        row |= {"command": planned.command, "digest": todays(ROOT / "ppo_atari.py")}
        row |= {"versions": versions, "processor": "Z80", "args": {"total_timesteps": 1_000_000}}
        row |= {"steps": 999_424, "seconds": 3600.0, "score": 10.0 * seed}
        row |= {"curve": [1.0] * run.CURVE_POINTS}
        run.append_line(tmp_path / "atari-small.jsonl", row)
    hand_made(tmp_path, "atari-bf16", lambda planned: 12.0, versions=versions)
    code, docs = made_report(tmp_path, "atari-bf16")
    said = capsys.readouterr().out
    assert code == 0 and (docs / "atari-bf16.png").exists()
    assert "1 environment × 2 seeds × 1,000,000 steps; gymnasium 1.4.0, ale-py 0.12.1" in said
    assert "4 runs, in sum 2.1 hours of all cores" in said  # 2 of an hour, 2 of 100 seconds
    assert row_of(said, "bfloat16")[1:] == ["15.00 ± 7.07"]
    assert row_of(said, "float32")[1:] == ["12.00 ± 0.00"]
    assert "scaled" not in said and "What became 0" not in said


def test_no_averages_where_the_random_policy_was_not_measured(tmp_path, capsys):
    skip = [f"untrained/Hopper-v5/{seed}" for seed in (1, 2)]
    hand_made(tmp_path, "random", random_score, skip=skip)
    hand_made(tmp_path, "table1", table_score)
    made_report(tmp_path, "table1")
    said = capsys.readouterr().out
    assert "No scaled scores: in Hopper-v5 the best run is not above the untrained policy" in said
    cells = row_of(said.partition("Returns")[0], "clipping, ε = 0.2")
    assert cells[2:5] == ["–", "–", "–"] and cells[6] == "0.95"


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"versions": {"gymnasium": "1.4.0", "mujoco": "3.9"}}, "mujoco 3.9 and 4.0.0 cannot"),
        ({"versions": {"gymnasium": "1.3.0", "mujoco": "4.0.0"}}, "gymnasium 1.3.0 and 1.4.0"),
        ({"digest": "0123"}, "table1 mixes results of 2 versions of ppo_continuous.py"),
    ],
)
def test_mixed_results_are_refused(tmp_path, capsys, changes, said):
    hand_made(tmp_path, "random", random_score)
    hand_made(tmp_path, "table1", table_score)
    rows = run.read_results(tmp_path / "table1.jsonl")
    rows[100] |= changes
    run.rewrite(tmp_path / "table1.jsonl", rows)
    assert made_report(tmp_path, "table1")[0] == 2
    assert said in capsys.readouterr().err


def test_mixed_environment_versions_are_refused(capsys):
    versions = {"gymnasium": "1", "mujoco": "2"}
    rows = [{"env": env, "versions": versions} for env in ("Hopper-v5", "Walker2d-v5", "Hopper-v4")]
    with pytest.raises(SystemExit):
        report.check_versions(rows)
    assert "Hopper-v4 and Hopper-v5 cannot be compared" in capsys.readouterr().err
    assert report.check_versions(rows[:2]) == versions


def test_results_of_an_older_script_are_reported(tmp_path, capsys):
    hand_made(tmp_path, "random", random_score)
    hand_made(tmp_path, "table1", table_score, digest="0123")
    made_report(tmp_path, "table1")
    assert "table1: ppo_continuous.py has changed since" in capsys.readouterr().err


@pytest.mark.parametrize("readme", [None, "no markers", "<!-- /table1 -->\n<!-- table1 -->"])
def test_readme_without_markers(tmp_path, capsys, readme):
    hand_made(tmp_path, "random", random_score)
    hand_made(tmp_path, "table1", table_score)
    code, docs = made_report(tmp_path, "table1", readme=readme)
    captured = capsys.readouterr()
    assert code == 1 and "README.md has no <!-- table1 --> and <!-- /table1 -->" in captured.err
    assert (docs / "table1.png").exists() and "clipping, ε = 0.2" in captured.out
    assert readme is None or (tmp_path / "README.md").read_text() == readme


@pytest.mark.parametrize(
    "name, said", [("humanoid", "no results of humanoid"), ("x", "no suite x")]
)
def test_report_of_nothing(tmp_path, capsys, name, said):
    assert made_report(tmp_path, name)[0] == 2
    assert said in capsys.readouterr().err
    assert made_report(tmp_path)[0] == 2


def test_reports_are_the_same_byte_for_byte_in_another_place(tmp_path):
    files = []
    for place in (tmp_path / "one", tmp_path / "another" / "checkout"):
        place.mkdir(parents=True)
        hand_made(place, "random", random_score)
        hand_made(place, "table1", table_score)
        (place / "README.md").write_text(README)
        words = ["--results", place, "--docs", place / "docs", "--readme", place / "README.md"]
        command = [sys.executable, "-m", "benchmarks.report", "table1", *map(str, words)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        files.append([(place / "README.md").read_bytes()])
        files[-1] += [p.read_bytes() for p in sorted((place / "docs").iterdir())]
    assert len(files[0]) == 3 and files[0] == files[1]


def test_the_pages_hold_what_the_results_say():
    results, checked = ROOT / "benchmarks" / "results", 0
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text, write = page.read_text(), report.write_report
        if page.name == "README.md":
            write = report.write_summary
        for name in SUITES:
            if f"<!-- {name} -->" not in text:
                continue
            if name == "rlhf":
                said = rlhf.write_report(report.load(results, name))
            elif name in ATARI_SUITES:
                said = atari.write_report(atari.collect(results, name))
            else:
                said = write(report.collect(results, name))
            assert report.between_markers(text, name, said) == text, f"{page}, {name}: make report"
            checked += 1
    assert checked


# ----------------------------------------------------------------------------------------- figures
def test_figure_1_is_the_papers_worked_values():
    ratios = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    np.testing.assert_allclose(figures.clip_terms(ratios, 1.0), [0.5, 1.0, 1.2])
    np.testing.assert_allclose(figures.clip_terms(ratios, -1.0), [-0.8, -1.0, -1.5])


def test_figure_2_tells_the_papers_story(tmp_path):
    curves = figures.draw_figure2(tmp_path / "f.png", "Hopper-v5", 1)
    alphas, new = curves["alphas"], 50
    assert alphas[new] == 1 and alphas[-1] == 2.5
    for name in ("cpi", "clip", "clipped", "kl"):
        assert curves[name][0] == pytest.approx(0, abs=1e-6)  # advantages have mean 0
    assert (np.diff(curves["cpi"]) > 0).all() and (np.diff(curves["kl"]) > 0).all()
    assert (curves["clip"] <= np.minimum(curves["cpi"], curves["clipped"]) + 1e-7).all()
    assert (
        0.7 < alphas[curves["clip"].argmax()] < 1.4
        and curves["clip"][-1] < curves["clip"].max() / 2
    )
    assert 0.005 < curves["kl"][new] < 0.04
    args = flags(env_id="Hopper-v5", seed=1, total_timesteps=2048, compile=False)
    command = [sys.executable, ROOT / "ppo_continuous.py", *args, "--run-dir", "run"]
    subprocess.run(command, check=True, capture_output=True)
    ((_, kl),) = scalars("run", "losses/kl_old_new")
    assert curves["kl"][new] == pytest.approx(kl, rel=1e-4)  # the run's own


def test_figures_are_the_same_byte_for_byte_and_small(tmp_path):
    for name in ("a", "b"):
        words = ["--docs", str(tmp_path / name)]
        subprocess.run([sys.executable, "-m", "benchmarks.figures", *words], cwd=ROOT, check=True)
    for name in ("figure1.png", "figure2.png"):
        first, second = ((tmp_path / x / name).read_bytes() for x in "ab")
        assert first == second and len(first) < 300_000
