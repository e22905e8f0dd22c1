"""Run a suite of suites.py: python -m benchmarks.run table1

    --workers 2                                 runs side by side
    --only env=Hopper-v5 setting=clip-0.2       a part of the suite
    --seeds 4 5    --total-timesteps 50000    --script fork.py
    --device cuda                               Atari: the networks on a GPU
    --recheck                                   has a new version of the script changed the results?

A run is a process of its own, in a folder of its own under runs/; a finished one is a line in
results/SUITE.jsonl. Start again after whatever has happened: what is done is skipped, what was
under way goes on from its checkpoint (on MuJoCo bit for bit, on Atari with new games). Another
budget or script has results of its own, such as results/table1@50000.jsonl. A run has one thread;
one of an Atari suite has every core, so these run one by one. Exit code: 0 all done, 1 something
failed, 2 bad input, 128 + signal.
"""

import ast
import contextlib
import csv
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.suites import SUITES, Run, runs_of, suite_of

ROOT = Path(__file__).resolve().parent.parent
CURVE_POINTS = 200
FINGERPRINT_EPISODES = 10
PROGRESS = re.compile(r"(?:step|episode) (\d+)/(\d+)  (.*)")  # the scripts' plain lines


@dataclass
class Args:
    """Run a suite, or what is left of it."""

    suite: tyro.conf.Positional[str]  # its name in suites.py
    workers: int | None = None  # runs side by side, else one per core; Atari: else one
    only: tuple[str, ...] = ()  # env=..., setting=..., seed=...: a part of the suite
    seeds: tuple[int, ...] = ()  # other seeds than the suite's
    total_timesteps: int | None = None  # another budget than the suite's
    script: Path | None = None  # another script than the suite's, with the same command line
    device: Literal["cpu", "cuda"] | None = None  # Atari; else the script's own default
    recheck: bool = False  # replay first iterations, and re-stamp results that come out equal
    rerun_stale: bool = False  # drop the results of another version of the script, and run anew
    results: Path = ROOT / "benchmarks" / "results"  # folder of the results
    runs: Path = ROOT / "runs"  # folder of the runs' own folders


class Failure(Exception):
    """A run that has no result; the text says why."""


class Stopped(Exception):
    """A run that Ctrl-C or the like has stopped; the next start goes on with it."""


# -------------------------------------------------------------------------- a script's own version
def code_of(node) -> object:
    """A syntax tree as nested lists, the same in every Python version; docstrings left out."""
    if isinstance(node, list):
        return [code_of(child) for child in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    given = {name: value for name, value in fields.items() if value is not None and value != []}
    return [type(node).__name__, *([name, code_of(value)] for name, value in given.items())]


def digest(script: Path) -> str:
    """16 hex digits that change with the script's code, not with its comments or docstrings.

    The code of project scripts that it imports counts as its own.
    """
    tree = ast.parse(script.read_text())
    imported = [n.name for x in ast.walk(tree) if isinstance(x, ast.Import) for n in x.names]
    paths = [ROOT / f"{name}.py" for name in sorted(imported)]
    trees = [tree, *(ast.parse(path.read_text()) for path in paths if path.exists())]
    return hashlib.sha256(json.dumps(code_of(trees)).encode()).hexdigest()[:16]


def script_path(command: str) -> Path:
    """The script that a command starts with; relative ones are the project's."""
    return ROOT / command.split()[0]


# ------------------------------------------------------------------------------------ results file
def read_results(path: Path) -> list[dict]:
    """The lines of a results file; a half-written last one is left out.

    Raises ValueError, naming the line, where one is damaged or a run is there twice.
    """
    content = path.read_bytes() if path.exists() else b""
    rows = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            rows.append(json.loads(line))
            key = rows[-1]["key"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{path}, line {number}, is damaged: repair or delete it") from None
        if any(row["key"] == key for row in rows[:-1]):
            raise ValueError(f"{path}, line {number}: {key} is there twice, delete one of them")
    return rows


def cut_half_line(path: Path) -> bool:
    """Cut off a last line that a killed runner left half-written; whether there was one."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return False
    os.truncate(path, whole)
    return True


def append_line(path: Path, row: dict) -> None:
    """Append a result as one line, in whole or not at all. Raises OSError, e.g. for a full disk."""
    line = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    size = os.fstat(file).st_size
    try:
        written = os.write(file, line)
        os.fsync(file)
        if written < len(line):
            raise OSError(f"only {written} of {len(line)} bytes could be written, no space left?")
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        raise
    finally:
        os.close(file)


def rewrite(path: Path, rows: list[dict]) -> None:
    """Replace a results file, in whole or not at all."""
    copy = path.with_suffix(".tmp")
    copy.unlink(missing_ok=True)
    copy.touch()
    for row in rows:
        append_line(copy, row)
    os.replace(copy, path)


# --------------------------------------------------------------------------------- a finished run
def learning_curve(steps, returns, total: int) -> list[float | None]:
    """Mean return of the episodes that end in each of CURVE_POINTS equal windows of [0, total].

    steps, returns: (episodes,), the step that each ended at. None for a window without an end.
    """
    windows = (np.asarray(steps) - 1) * CURVE_POINTS // total  # (episodes,)
    curve: list[float | None] = [None] * CURVE_POINTS
    for window in np.unique(windows):
        curve[window] = float(f"{np.mean(np.asarray(returns)[windows == window]):.5g}")
    return curve


def read_episodes(run_dir: Path) -> tuple[list[int], list[float]]:
    """Steps and returns of a run's episodes so far; a half-written last row is left out."""
    path = run_dir / "episodes.csv"
    content = path.read_text() if path.exists() else ""
    rows = list(csv.DictReader(content[: content.rfind("\n") + 1].splitlines()))
    return [int(row["step"]) for row in rows], [float(row["return"]) for row in rows]


def fingerprint(run_dir: Path) -> dict:
    """What a run's first iterations leave: its first returns, and the loss of iteration 1."""
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    has_loss = "losses/policy_loss" in events.Tags()["scalars"]
    loss = events.Scalars("losses/policy_loss")[0].value if has_loss else None
    return {"returns": read_episodes(run_dir)[1][:FINGERPRINT_EPISODES], "loss": loss}


def scalars_of(run_dir: Path, names: tuple[str, ...]) -> dict[str, list[float]]:
    """A run's TensorBoard scalars of these names, as far as it has them, to 5 digits."""
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    found = [name for name in names if name in events.Tags()["scalars"]]
    return {name: [float(f"{e.value:.5g}") for e in events.Scalars(name)] for name in found}


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def result_line(run: Run, run_dir: Path, script_digest: str) -> dict:
    """The line of a finished run. Raises Failure where its folder doesn't hold one."""
    try:
        result = json.loads((run_dir / "result.json").read_text())
        config = json.loads((run_dir / "config.json").read_text())
        steps, returns = read_episodes(run_dir)
        if result["status"] != "finished" or not np.isfinite(result["score"]):
            raise ValueError(f"status {result['status']}, score {result['score']}")
        row = {"key": run.key, "setting": run.setting, "env": run.env, "seed": run.seed}
        row["command"] = f"{Path(run.command.split()[0]).name} {run.command.partition(' ')[2]}"
        # A path would tell of this machine and not of the run.
        row["args"] = {k: v for k, v in config["args"].items() if k not in ("run_dir", "resume")}
        row |= {"digest": script_digest, "versions": config["versions"], "processor": processor()}
        row |= {name: result[name] for name in ("steps", "seconds", "score", "episodes")}
        row |= {"average": float(np.mean(returns)), "fingerprint": fingerprint(run_dir)}
        if run.scalars:
            row["scalars"] = scalars_of(run_dir, run.scalars)
        else:
            row["curve"] = learning_curve(steps, returns, result["steps"])
        json.dumps(row, allow_nan=False)
        return row
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        reason = (
            "has no " + Path(error.filename).name if isinstance(error, OSError) else repr(error)
        )
        said = f"ended without an error, but left no result ({reason})"
        raise Failure(f"{said}, see {run_dir}\n{tail(run_dir / 'log.txt')}") from None


# ------------------------------------------------------------------------------------- one process
class Runner:
    """What the workers share: where the runs are, who has been stopped, how far each run is."""

    def __init__(self, runs: Path, all_cores: bool, workers: int | None, device: str | None):
        self.runs = runs
        self.where = ["--device", device] if device else []  # not part of what a run is
        self.workers = workers or (1 if all_cores else os.cpu_count() or 1)
        self.environment = {**os.environ} if all_cores else {**os.environ, "OMP_NUM_THREADS": "1"}
        self.signals: list[int] = []  # Ctrl-C and the like; the second one kills
        self.progress: dict[str, tuple[float, str]] = {}  # key: (fraction done, text)

    def on_signal(self, number: int, frame) -> None:
        self.signals.append(number)

    def folder(self, run: Run, script_digest: str) -> Path:
        """A run's folder; another code or command has another one, so nothing mixes."""
        version = hashlib.sha256(f"{script_digest} {run.command}".encode()).hexdigest()[:8]
        return self.runs / f"{run.key.replace('/', '__')}__{version}"

    def execute(self, run: Run, script_digest: str) -> dict:
        """Run, or go on, or find finished; returns the results line. Raises Failure."""
        run_dir = self.folder(run, script_digest)
        if digest(script_path(run.command)) != script_digest:
            raise Failure("its script has changed since the suite began: start again")
        try:
            self.process(run, run_dir, [])
            return result_line(run, run_dir, script_digest)
        finally:
            self.progress.pop(run.key, None)

    def replay(self, run: Run, script_digest: str) -> dict:
        """The fingerprint of a run's first iterations with today's script. Raises Failure.

        Equal for an Atari run that was stopped, too, unless that was within these first games.
        """
        run_dir = self.runs / "recheck" / self.folder(run, script_digest).name
        shutil.rmtree(run_dir, ignore_errors=True)  # a replay takes seconds, begin it anew
        try:
            trains = "--total-timesteps" in run.command  # the random policies write at the end
            words = ["--save-every", "1"] if trains else []
            self.process(run, run_dir, words, episodes=FINGERPRINT_EPISODES)
            return fingerprint(run_dir)
        finally:
            self.progress.pop(run.key, None)

    def process(self, run: Run, run_dir: Path, words: list[str], episodes: int | None = None):
        """One run as a process, until it ends, or has written so many episodes, or we are stopped.

        Its output is a file, and a lock on another file is its own: if the runner is killed, the
        process goes on, and the next runner waits for it.
        """
        if self.signals:
            raise Stopped
        run_dir.mkdir(parents=True, exist_ok=True)
        log = run_dir / "log.txt"
        with open(run_dir / "lock", "w") as lock:
            while not try_lock(lock):
                self.progress[run.key] = last_progress(log, "still running from an earlier start")
                if self.signals:
                    raise Failure("goes on by itself, an earlier runner was killed")
                time.sleep(0.2)
            if is_finished(run_dir):
                return
            command = [sys.executable, str(script_path(run.command)), *run.command.split()[1:]]
            command += ["--run-dir", str(run_dir), *self.where, *words]
            if (run_dir / "config.json").exists():
                command = [*command[:2], "--resume", str(run_dir)]
            with open(log, "a") as output:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.environment,
                    pass_fds=[lock.fileno()],
                    start_new_session=True,  # else Ctrl-C would reach it twice
                )
            code = self.watch(child, run, run_dir, log, episodes)
        # A process that we interrupt while it is exiting dies of the signal, its work done.
        if code == 0 or (episodes and code in (128 + signal.SIGINT, -signal.SIGINT)):
            return
        if self.signals:
            raise Stopped
        raise Failure(f"exit code {code}, see {log}\n{tail(log)}")

    def watch(self, child, run: Run, run_dir: Path, log: Path, episodes: int | None) -> int:
        """Wait for a process and pass on what stops it: SIGINT once, then SIGKILL; exit code."""
        sent = 0
        while child.poll() is None:
            self.progress[run.key] = last_progress(log, "starting")
            enough = episodes and len(read_episodes(run_dir)[1]) >= episodes
            if sent == 0 and (self.signals or enough):
                child.send_signal(signal.SIGINT)
                sent = 1
            if sent == 1 and len(self.signals) > 1:
                child.kill()
                sent = 2
            time.sleep(0.2)
        return child.returncode


def try_lock(file) -> bool:
    """Lock an open file, for as long as any process has it open; whether it was free."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def is_finished(run_dir: Path) -> bool:
    """Whether a run's result.json says so."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return json.loads((run_dir / "result.json").read_text())["status"] == "finished"
    return False


def tail(log: Path, size: int = 1500) -> str:
    """The end of a log, indented."""
    text = ""
    if log.exists():
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            text = file.read().decode(errors="replace").strip()
    return "\n".join(f"    {line}" for line in (text or "(it printed nothing)").splitlines()[-12:])


def last_progress(log: Path, otherwise: str) -> tuple[float, str]:
    """(fraction done, the rest of the line) of the last progress line in a log."""
    lines = PROGRESS.findall(tail(log))
    if not lines:
        return 0.0, otherwise
    done, total, text = lines[-1]
    return int(done) / max(int(total), 1), text


# --------------------------------------------------------------------------------------- the suite
def fail(message: str):
    """Bad input: exit code 2 and one line."""
    print(f"benchmarks.run: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def selected(args: Args) -> tuple[str, list[Run]]:
    """The name of the results, and the runs that the arguments ask for. Exits with 2."""
    if args.suite not in SUITES:
        fail(f"no suite {args.suite}: take one of {', '.join(SUITES)}")
    suite, name = suite_of(args.suite), args.suite
    if args.device is not None and not suite.all_cores:
        fail(f"--device {args.device}: the scripts of {args.suite} run on the CPU")
    if args.workers is not None and args.workers < 1:
        fail(f"--workers {args.workers}: must be 1 or more")
    if args.script is not None:
        if not args.script.is_file():
            fail(f"--script {args.script}: no such file")
        if len({command.split()[0] for command in suite.settings.values()}) > 1:
            fail(f"--script {args.script}: {args.suite} compares scripts, give a suite of one")
        name += f"@{args.script.stem}"
    if args.total_timesteps is not None:
        if suite.steps is None or args.total_timesteps < 1:
            fail(f"--total-timesteps {args.total_timesteps}: {args.suite} cannot have it")
        name += f"@{args.total_timesteps}" if args.total_timesteps != suite.steps else ""
    script = args.script.resolve() if args.script else None
    runs = runs_of(suite, tuple(dict.fromkeys(args.seeds)), args.total_timesteps, script)
    wanted: dict[str, set[str]] = {}
    for word in args.only:
        column, _, value = word.partition("=")
        choices = {str(getattr(run, column)) for run in runs} if column in Run._fields[:3] else ()
        if value not in choices:
            known = f"one of {', '.join(sorted(choices))}" if choices else "env=, setting= or seed="
            fail(f"--only {word}: give {known}")
        wanted.setdefault(column, set()).add(value)
    matching = [r for r in runs if all(str(getattr(r, c)) in v for c, v in wanted.items())]
    return name, matching


def stale(row: dict, run: Run, script_digest: str) -> bool:
    """Whether a results line comes from other code or another command than today's."""
    name, _, flags = run.command.partition(" ")
    return row["digest"] != script_digest or row["command"] != f"{Path(name).name} {flags}"


def recheck(todo: list[Run], rows: list[dict], digests: dict, runner: Runner, args: Args, path):
    """Replay one seed per setting and environment; re-stamp the lines whose fingerprint is equal.

    todo: stale runs. Returns their number of settings and environments that differ.
    """
    old = {row["key"]: row for row in rows}
    groups: dict[tuple, list[Run]] = {}
    for run in todo:
        name, _, flags = run.command.partition(" ")
        if old[run.key]["command"] == f"{Path(name).name} {flags}":  # else it is another experiment
            groups.setdefault((run.setting, run.env), []).append(run)
    stamped = []

    def replayed(run: Run, found: dict) -> str:
        before = old[run.key]["fingerprint"]
        if found != before:
            raise Failure(f"differs: {first_difference(before, found)}")
        for same in groups[run.setting, run.env]:
            old[same.key]["digest"] = digests[same.command.split()[0]]
            stamped.append(same)
        rewrite(path, rows)
        return f"the same, {len(groups[run.setting, run.env])} results re-stamped"

    first = [group[0] for group in groups.values()]
    failed = work(f"{args.suite}, recheck", first, runner.replay, digests, replayed, runner)
    print(f"{len(stamped)} of {len(todo)} stale results re-stamped")
    return len(todo) - len(stamped) or failed


def first_difference(before: dict, after: dict) -> str:
    """Where two fingerprints part, in words."""
    for number, (x, y) in enumerate(zip(before["returns"], after["returns"]), start=1):
        if x != y:
            return f"return of episode {number} was {x}, is {y}"
    if len(before["returns"]) != len(after["returns"]):
        return f"{len(before['returns'])} episodes were compared, now {len(after['returns'])}"
    return f"loss of iteration 1 was {before['loss']}, is {after['loss']}"


def work(name, todo: list[Run], execute, digests, record, runner: Runner) -> int:
    """Do the runs on a pool of threads, with a live view; returns how many failed.

    execute(run, digest) goes into the threads; record(run, its value) is called here, one by one,
    and returns what to print.
    """
    console, failed, done, start = Console(highlight=False), 0, 0, time.monotonic()
    name_column, status = TextColumn("{task.description}"), TextColumn("{task.fields[status]}")
    pool = ThreadPoolExecutor(runner.workers)
    futures: dict[Future, Run] = {}
    for run in todo:
        futures[pool.submit(execute, run, digests[run.command.split()[0]])] = run
    bars: dict[str, int] = {}
    with Progress(
        name_column, BarColumn(20), status, console=console, disable=not console.is_terminal
    ) as view:
        suite_bar = view.add_task(name, total=len(todo), status="")
        while futures:
            finished, _ = wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
            if runner.signals:
                futures = {f: run for f, run in futures.items() if not f.cancel()}
            for future in finished:
                run = futures.pop(future)
                try:
                    said = record(run, future.result())
                    done += 1
                except Stopped:
                    continue
                except (Failure, OSError) as error:
                    failed += 1
                    said = f"FAILED: {error}"
                console.print(
                    f"[{done}/{len(todo)}] {run.key}: {said}", markup=False, soft_wrap=True
                )
            running = dict(runner.progress)
            for key in bars.keys() - running.keys():
                view.remove_task(bars.pop(key))
            for key, (fraction, text) in running.items():
                if key not in bars:
                    bars[key] = view.add_task(f"  {key}", total=1.0, status="")
                view.update(bars[key], completed=fraction, status=text)
            amount = done + failed + sum(fraction for fraction, _ in running.values())
            left = time_left(time.monotonic() - start, amount, len(todo))
            view.update(suite_bar, completed=amount, status=f"{done} of {len(todo)}, {left} left")
    pool.shutdown()
    return failed


def time_left(seconds: float, done: float, total: float) -> str:
    """ "h:mm" at the pace so far; "?" before there is one."""
    if done <= 0:
        return "?"
    minutes = int(seconds * (total - done) / done / 60 + 0.5)
    return f"{minutes // 60}:{minutes % 60:02d}"


def main(args: Args) -> int:
    """Run what is left of the suite; returns the exit code."""
    name, runs = selected(args)
    path = args.results / f"{name}.jsonl"
    try:
        args.results.mkdir(parents=True, exist_ok=True)
        lock = open(args.results / f"{name}.lock", "a")
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
        (args.runs / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{error.filename} cannot be written: {error.strerror}")
    if not try_lock(lock):
        fail(f"another runner is at work on {name}: wait for it, or stop it")
    if cut_half_line(path):
        print(f"{path.name}: dropped a half-written last line, its run will be recorded again")
    try:
        rows = read_results(path)
        digests = {word: digest(script_path(word)) for word in {r.command.split()[0] for r in runs}}
    except (OSError, ValueError, SyntaxError) as error:
        fail(str(error))
    for package in ("gymnasium", "mujoco", "ale-py"):
        found = {row["versions"][package] for row in rows if package in row["versions"]}
        others = found - {version(package)}
        if others:
            fail(
                f"{path.name} holds results of {package} {others.pop()}, here it is "
                f"{version(package)}: install that one, or move the results away"
            )

    runner = Runner(args.runs / name, suite_of(name).all_cores, args.workers, args.device)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, runner.on_signal)
    old = {row["key"]: row for row in rows}
    is_stale = [
        run
        for run in runs
        if run.key in old and stale(old[run.key], run, digests[run.command.split()[0]])
    ]
    if args.recheck:
        failed = recheck(is_stale, rows, digests, runner, args, path)
        return 128 + runner.signals[0] if runner.signals else int(failed > 0)
    if is_stale and args.rerun_stale:
        dropped = {run.key for run in is_stale}
        rewrite(path, [row for row in rows if row["key"] not in dropped])
        old = {key: row for key, row in old.items() if key not in dropped}
    elif is_stale:
        print(
            f"{len(is_stale)} of {len(runs)} results are stale: the script or its flags have "
            f"changed since {is_stale[0].key} and others ran.\n"
            "--recheck keeps those that the change does not touch, --rerun-stale runs them anew."
        )
        return 1

    def record(run: Run, row: dict) -> str:
        try:
            append_line(path, row)
        except OSError as error:
            raise Failure(f"done but not recorded, {error}; start again, it is kept") from None
        return f"score {row['score']:.1f}, {row['seconds']:.0f} s"

    todo = [run for run in runs if run.key not in old]
    print(f"{name}: {len(runs)} runs, {len(runs) - len(todo)} of them done already", flush=True)
    failed = work(name, todo, runner.execute, digests, record, runner)
    if runner.signals:
        print("stopped; start again to go on from the checkpoints")
        return 128 + runner.signals[0]
    if failed:
        print(f"{failed} of {len(todo)} runs failed; start again to try them again")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
