"""The report of the Atari suites: the paper as oracle, hand-made results, a real run."""

import csv
import dataclasses
import functools
import json
import statistics
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from conftest import ROOT
from PIL import Image

import ppo_atari
from benchmarks import atari, report, run
from benchmarks.suites import GAMES, SUITES, Run, runs_of


@functools.cache
def table6() -> list[dict]:
    """atari_scores.csv as it stands: a dictionary of texts per game."""
    with open(ROOT / "benchmarks" / "atari_scores.csv") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------------------------------- the data
def test_games_are_those_of_table_6_and_games_of_the_script():
    assert tuple(row["game"] for row in table6()) == GAMES == SUITES["atari"].envs
    assert len({ppo_atari.rom_name(game) for game in GAMES}) == 49
    assert set(SUITES["atari-small"].envs) <= set(GAMES)


def test_scores_are_found_by_game_and_column():
    found = atari.published(["Pong", "Breakout", "Atlantis"])  # as Table 6 prints them
    assert found["a2c"].tolist() == [19.7, 303.0, 729265.3]
    assert found["acer"].tolist() == [20.7, 456.4, 1841376.0]
    assert found["ppo"].tolist() == [20.7, 274.8, 2311815.0]
    assert found["random"].tolist() == [-20.7, 1.7, 12850.0]
    assert found["human"].tolist() == [14.6, 30.5, 29028.1]


# -------------------------------------------------------------------------------------- statistics
def test_games_won_is_the_papers_table_2_but_for_pong():
    """Table 2 has 28 games for ACER and 1 tie; Table 6's rounding makes Pong a second tie.

    ACER and PPO both have 20.7 there. With Pong given to ACER the count is Table 2's, exactly.
    """
    scores = {name: atari.published(GAMES)[column] for column, name in atari.PAPER.items()}
    assert atari.games_won(scores) == {"A2C": 1, "ACER": 27, "PPO": 19, "tie": 2}
    scores["ACER"][GAMES.index("Pong")] += 0.1
    won = atari.games_won(scores)
    assert tuple(won.values()) == atari.TABLE2["Table 2, mean of the last 100 games"]
    assert [sum(row) for row in atari.TABLE2.values()] == [49, 49]


def test_games_won_against_a_plain_count():
    rng = np.random.default_rng(0)
    scores = {name: rng.integers(4, size=500) * 1.0 for name in "abc"}
    expected = Counter()
    for game in zip(*scores.values()):
        winners = [name for name, score in zip("abc", game) if score == max(game)]
        expected[winners[0] if len(winners) == 1 else "tie"] += 1
    assert min(expected.values()) > 50
    assert atari.games_won(scores) == expected


def test_more_digits_than_the_papers_win_nothing():
    scores = {"PPO": np.array([20.7, 20.7, 20.7]), "ours": np.array([20.74, 20.66, 20.76])}
    assert atari.games_won(scores) == {"PPO": 0, "ours": 1, "tie": 2}


def test_intervals_are_of_statistics_of_the_games_means():
    # The seeds of game g are 10 g + (0, 3, 6), so the median of the games' means is that of game 2:
    # 23, and 20 to 26 in resamplings. Either end comes in 1 of 27 draws: more than 2.5% of them.
    scores = 10.0 * np.arange(5)[:, None] + np.array([0.0, 3.0, 6.0])
    text = atari.with_interval(scores, atari.median)
    value, low, high = map(float, text.replace(",", "").replace("]", "").replace("[", "").split())
    assert value == 23 and (low, high) == (20, 26)
    assert atari.with_interval(scores[:, 1:2], atari.median) == "23.00"
    middle = scipy.stats.trim_mean(scores.mean(1), 0.25)
    assert atari.with_interval(scores, report.iqm).startswith(f"{middle:.2f} [")


# ------------------------------------------------------------------------------ hand-made results
def ours(planned: Run) -> float:
    """Random play plus a share of the way to a human: half a way, and 0.1 more or less by seed."""
    row = table6()[GAMES.index(planned.env)]
    low, high = float(row["random"]), float(row["human"])
    return low + (0.5 + 0.1 * (planned.seed - 2)) * (high - low)


def hand_made(folder, name: str, score=ours, skip=(), **changes) -> None:
    """Results of a suite: score(run) in the last 100 games, half of it over all of training."""
    folder.mkdir(exist_ok=True)
    for planned in runs_of(SUITES[name]):
        if planned.key in skip:
            continue
        row = {"key": planned.key, "setting": "ppo", "env": planned.env, "seed": planned.seed}
        row |= {"command": planned.command, "digest": todays()}
        total = SUITES[name].budget(planned.env)
        row |= {"args": {"total_timesteps": total}, "steps": total // 1024 * 1024}
        row |= {"versions": {"gymnasium": "1.4.0", "ale-py": "0.12.1"}}
        row |= {"score": score(planned), "average": score(planned) / 2}
        curve = np.linspace(0, row["score"], run.CURVE_POINTS).tolist()
        run.append_line(folder / f"{name}.jsonl", row | {"curve": [None, *curve[1:]]} | changes)


def made_report(folder, *names) -> int:
    args = atari.Args(names, results=folder, docs=folder / "docs")
    try:
        return atari.main(args)
    except SystemExit as error:
        return error.code


@functools.cache
def todays() -> str:
    return run.digest(ROOT / "ppo_atari.py")


def row_of(text: str, start: str) -> list[str]:
    (line,) = [x for x in text.splitlines() if x.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_report_of_the_small_suite_is_the_hand_computed_one(tmp_path):
    scores = {"Pong": 20.72, "Breakout": 300.0}
    hand_made(tmp_path, "atari-small", lambda planned: scores[planned.env])
    page = tmp_path / "docs" / "atari.md"
    page.parent.mkdir()
    page.write_text("a\n<!-- atari-small -->\nold\n<!-- /atari-small -->\nz\n")
    assert made_report(tmp_path, "atari-small") == 0
    text = page.read_text()
    assert text.startswith("a\n") and text.endswith("z\n") and "old" not in text
    assert "2 games × 1 seed; gymnasium 1.4.0, ale-py 0.12.1" in text
    assert "fewer steps" in text and "runs are in" not in text
    assert row_of(text, "Pong") == [
        *("Pong", "−20.7", "14.6", "19.7", "20.7", "20.7", "**20.7**", "10.4", "4,000,000"),
    ]
    assert row_of(text, "Breakout") == [
        *("Breakout", "1.7", "30.5", "303.0", "456.4", "274.8", "**300.0**", "150.0", "1,000,000"),
    ]
    # (20.72 + 20.7) / (14.6 + 20.7) = 1.1734, (300 - 1.7) / (30.5 - 1.7) = 10.3576; of two games
    # nothing is cut, so median and interquartile mean are the mean.
    assert row_of(text, "ours")[1:] == ["5.77", "5.77"]
    assert row_of(text, "PPO")[1:] == ["5.33", "5.33"]  # (41.4 / 35.3 + 273.1 / 28.8) / 2
    # Pong: 19.7, 20.7, 20.7, ours 20.7. Breakout: 303, 456.4, 274.8, ours 300.
    assert row_of(text, "Table 2, mean over all of training")[1:] == "49 1 18 30 – 0".split()
    assert row_of(text, "Table 2, mean of the last 100 games")[1:] == "49 1 28 19 – 1".split()
    assert row_of(text, "Table 6, these games")[1:] == "2 0 1 0 – 1".split()
    assert row_of(text, "ours in place of PPO")[1:] == "2 0 1 – 0 1".split()
    assert row_of(text, "ours beside PPO")[1:] == "2 0 1 0 0 1".split()
    assert "(atari-small.png)" in text
    assert (tmp_path / "docs" / "atari-small.png").stat().st_size < 300_000


def test_report_of_49_games_against_scipy(tmp_path, capsys):
    hand_made(tmp_path, "atari")
    assert made_report(tmp_path) == 0
    text = capsys.readouterr().out
    assert "49 games × 3 seeds" in text and "fewer steps" not in text and "runs are in" not in text
    for column, name in (("a2c", "A2C"), ("acer", "ACER"), ("ppo", "PPO")):
        scaled = []
        for row in table6():
            low, high = float(row["random"]), float(row["human"])
            scaled.append((float(row[column]) - low) / (high - low))
        expected = [statistics.median(scaled), scipy.stats.trim_mean(scaled, 0.25)]
        assert row_of(text, name)[1:] == [f"{x:.2f}" for x in expected]
    # Ours: 0.4, 0.5, 0.6 in every game; all resamplings together reach 0.4 and 0.6, few come near.
    for cell in row_of(text, "ours")[1:]:
        value, low, high = map(float, cell.replace(",", "").strip("]").replace("[", "").split())
        assert value == 0.5 and 0.4 < low < 0.5 < high < 0.6
    won = row_of(text, "ours in place of PPO")[1:]
    expected, halfway = Counter(), Run("ppo", "", 2, "")
    for row in table6():
        players = {name: float(row[name.lower()]) for name in ("A2C", "ACER")}
        players["ours"] = round(ours(halfway._replace(env=row["game"])), 1)
        winners = [name for name, score in players.items() if score == max(players.values())]
        expected[winners[0] if len(winners) == 1 else "tie"] += 1
    assert won == ["49", *(str(expected[x]) for x in ("A2C", "ACER")), "–"] + [
        str(expected[x]) for x in ("ours", "tie")
    ]
    assert row_of(text, "Table 6, these games")[1:] == "49 1 27 19 – 2".split()
    picture = tmp_path / "docs" / "atari.png"
    assert Image.open(picture).width > 1500 and picture.stat().st_size < 500_000


def test_missing_runs_are_counted_and_their_games_left_out(tmp_path, capsys):
    skip = [r.key for r in runs_of(SUITES["atari"]) if r.env not in ("Pong", "Boxing", "Alien")]
    hand_made(tmp_path, "atari", skip=[*skip, "ppo/Alien/2"])
    assert made_report(tmp_path, "atari") == 0
    text = capsys.readouterr().out
    assert "8 of 147 runs are in, 2 of 49 games are complete" in text and "over 2 games" in text
    assert row_of(text, "Alien")[6:] == ["2 of 3 runs", "–", "10,000,000"]
    assert row_of(text, "Zaxxon")[5:] == ["5,008.7", "0 of 3 runs", "–", "–"]
    assert row_of(text, "Table 6, these games")[1:] == "2 0 1 0 – 1".split()  # Boxing, Pong
    assert row_of(text, "ours")[1].startswith("0.50 [")


def test_no_complete_game_no_average(tmp_path, capsys):
    hand_made(tmp_path, "atari", skip=[r.key for r in runs_of(SUITES["atari"])][1:])
    assert made_report(tmp_path, "atari") == 0
    text = capsys.readouterr().out
    assert "1 of 147 runs are in, 0 of 49 games are complete" in text
    assert row_of(text, "Alien")[6] == "1 of 3 runs" and "| human-normalised |" not in text


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"versions": {"gymnasium": "1.4.0", "ale-py": "0.11"}}, "ale-py 0.11 and 0.12.1 cannot"),
        ({"versions": {"gymnasium": "1.3.0", "ale-py": "0.12.1"}}, "gymnasium 1.3.0 and 1.4.0"),
        ({"digest": "0123"}, "atari-small mixes results of 2 versions of ppo_atari.py"),
    ],
)
def test_mixed_results_are_refused(tmp_path, capsys, changes, said):
    hand_made(tmp_path, "atari-small")
    rows = run.read_results(tmp_path / "atari-small.jsonl")
    rows[1] |= changes
    run.rewrite(tmp_path / "atari-small.jsonl", rows)
    assert made_report(tmp_path, "atari-small") == 2
    assert said in capsys.readouterr().err


def test_each_report_names_the_other(tmp_path, capsys):
    hand_made(tmp_path, "atari")
    assert made_report(tmp_path, "table1") == 2
    assert "table1 is not one of atari, atari-small" in capsys.readouterr().err
    for names, said in ((("atari",), "python -m benchmarks.atari"), ((), "no results in")):
        with pytest.raises(SystemExit, match="2"):
            report.main(report.Args(names, tmp_path, tmp_path / "docs", tmp_path / "README.md"))
        assert said in capsys.readouterr().err


def test_report_of_nothing(tmp_path, capsys):
    assert made_report(tmp_path, "atari") == 2
    assert "no results of atari in" in capsys.readouterr().err
    assert made_report(tmp_path) == 0
    assert "no results of the Atari suites" in capsys.readouterr().out


def test_reports_are_the_same_byte_for_byte(tmp_path, capsys):
    made = []
    for place in (tmp_path / "a", tmp_path / "b"):
        hand_made(place, "atari-small")
        made_report(place, "atari-small")
        made.append((capsys.readouterr().out, (place / "docs" / "atari-small.png").read_bytes()))
    assert made[0] == made[1]


# -------------------------------------------------------------------------------------- a real run
def test_a_real_run_through_runner_recheck_and_report(tmp_path, monkeypatch, capfd):
    """Breakout for 512 steps. A replay finds the same games and the same loss."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that spin on busy cores take minutes
    flags = "--no-compile --num-envs 2 --num-steps 64 --minibatch-size 64 --num-epochs 1"
    small = dataclasses.replace(
        SUITES["atari-small"], settings={"ppo": f"ppo_atari.py {flags}"}, envs=("Breakout",)
    )
    monkeypatch.setitem(SUITES, "atari-small", small)
    fork = tmp_path / "fork.py"
    fork.write_text((ROOT / "ppo_atari.py").read_text())
    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    args = run.Args("atari-small", total_timesteps=512, script=fork, **folders)
    assert run.main(args) == 0
    path = tmp_path / "results" / "atari-small@fork@512.jsonl"
    (row,) = run.read_results(path)
    assert (row["steps"], row["env"], row["seed"]) == (512, "Breakout", 1)
    (run_dir,) = (tmp_path / "runs" / "atari-small@fork@512").glob("ppo__Breakout__1__*")
    with open(run_dir / "episodes.csv") as file:
        returns = [float(game["return"]) for game in csv.DictReader(file)]
    assert 2 <= len(returns) < 100 and row["fingerprint"]["returns"] == returns[:10]
    assert row["score"] == row["average"] == pytest.approx(np.mean(returns))
    assert row["versions"]["ale-py"] and "mujoco" not in row["versions"]
    assert str(tmp_path) not in json.dumps(row) and row["fingerprint"]["loss"] is not None

    fork.write_text(fork.read_text() + "\nnothing = None\n")
    capfd.readouterr()
    assert run.main(args) == 1
    assert "1 of 1 results are stale" in capfd.readouterr().out
    assert run.main(dataclasses.replace(args, recheck=True)) == 0
    assert "1 of 1 stale results re-stamped" in capfd.readouterr().out
    docs = tmp_path / "docs"
    name = "atari-small@fork@512"
    assert atari.main(atari.Args((name,), folders["results"], docs)) == 0
    cells = row_of(capfd.readouterr().out, "Breakout")
    assert cells[-3:] == [f"**{np.mean(returns):.1f}**", f"{np.mean(returns):.1f}", "512"]
    assert (docs / f"{name}.png").exists()
