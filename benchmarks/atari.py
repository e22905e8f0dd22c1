"""The Atari suites' tables and pictures, from the results files alone, byte for byte the same.

    python -m benchmarks.atari atari-small    to the terminal and docs/: the picture, atari.md
    python -m benchmarks.atari                the same for each of the two that has results

In docs/atari.md the report stands between <!-- atari-small --> and <!-- /atari-small -->.
atari_scores.csv holds one line per game of Schulman et al. 2017 (1707.06347), Table 6: its scores
of A2C, ACER and PPO, which are means over the last 100 games of 3 runs of 10M steps; and the scores
of random play and of a human as DQN Zoo gives them.
"""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import tyro

from benchmarks.report import (
    COLOURS,
    STYLE,
    check_digests,
    check_versions,
    curves_of,
    iqm,
    load,
    markdown,
    normalise,
    number,
    put_into,
    refuse,
    save,
    scores_of,
    smooth,
    stratified_bootstrap,
)
from benchmarks.run import CURVE_POINTS, ROOT
from benchmarks.suites import ATARI_SUITES, Suite, suite_of

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PAPER = {"a2c": "A2C", "acer": "ACER", "ppo": "PPO"}  # columns of atari_scores.csv: names
PAPER_STEPS = 10_000_000
TABLE2 = {  # Schulman et al. 2017, Table 2: games won by A2C, ACER, PPO; ties
    "Table 2, mean over all of training": (1, 18, 30, 0),
    "Table 2, mean of the last 100 games": (1, 28, 19, 1),
}


@dataclass
class Args:
    """Tables and pictures of the Atari suites."""

    suites: tyro.conf.Positional[tuple[str, ...]] = ()  # none: both, as far as they have results
    results: Path = ROOT / "benchmarks" / "results"  # folder of the results
    docs: Path = ROOT / "docs"  # folder of the pictures and of atari.md, which gets the tables


# -------------------------------------------------------------------------------------- statistics
def games_won(scores: dict[str, np.ndarray]) -> dict[str, int]:
    """Games in which each player is alone at the top, and "tie": the rest.

    scores: player: (games,). They are rounded to Table 6's one decimal first, lest a player whose
    score is known to more digits win by them.
    """
    table = np.round(np.stack([*scores.values()]), 1)  # (players, games)
    best = table == table.max(0)
    alone = best & (best.sum(0) == 1)
    won = dict(zip(scores, alone.sum(1).tolist()))
    return won | {"tie": table.shape[1] - sum(won.values())}


def median(scores) -> np.ndarray:
    """Median over the last axis: (..., n) -> (...)."""
    return np.median(scores, axis=-1)


def with_interval(scores: np.ndarray, statistic) -> str:
    """A statistic of the games' means, scores (G, S); with its 95% interval for several seeds."""
    G, S = scores.shape
    value = number(statistic(scores.mean(1)))
    if S < 2:
        return value
    low, high = stratified_bootstrap(scores, lambda x: statistic(x.reshape(-1, G, S).mean(-1)))
    return f"{value} [{number(low)}, {number(high)}]"


# ------------------------------------------------------------------------------- from the results
def published(games) -> dict[str, np.ndarray]:
    """atari_scores.csv's columns random, human, a2c, acer, ppo for these games: (G,) each."""
    with open(Path(__file__).with_name("atari_scores.csv")) as file:
        rows = {row.pop("game"): row for row in csv.DictReader(file)}
    columns = ("random", "human", *PAPER)
    return {column: np.array([float(rows[game][column]) for game in games]) for column in columns}


@dataclass
class Results:
    """All that a report is made of. G games, S seeds."""

    name: str
    suite: Suite
    rows: list[dict]
    last: np.ndarray  # (G, S), mean of a run's last 100 games, NaN where missing
    all: np.ndarray  # (G, S), mean of all its games, likewise
    published: dict[str, np.ndarray]  # column: (G,)
    versions: dict[str, str]  # of gymnasium and ale-py

    @property
    def complete(self) -> np.ndarray:
        """(G,), the games whose seeds are all there."""
        return ~np.isnan(self.last).any(1)


def collect(results: Path, name: str) -> Results:
    """Read and check a suite's results. Exits with 2 where there are none, or mixed ones."""
    suite = suite_of(name)
    rows = [row for row in load(results, name) if row["env"] in suite.envs]
    rows = [row for row in rows if row["seed"] in suite.seeds]
    if not rows:
        refuse(f"no results of {name} in {results}: python -m benchmarks.run {name}")
    check_digests(name, rows)
    (setting,) = suite.settings
    last, everything = (
        scores_of(rows, setting, suite.envs, suite.seeds, column) for column in ("score", "average")
    )
    versions = check_versions(rows, "ale-py")
    return Results(name, suite, rows, last, everything, published(suite.envs), versions)


def steps_of(results: Results, game: str) -> int | None:
    """The budget of a game's runs; None where there is no run."""
    return max(
        (r["args"]["total_timesteps"] for r in results.rows if r["env"] == game), default=None
    )


# ------------------------------------------------------------------------------------------ tables
def points(x: float) -> str:
    """A score to one decimal, as in Table 6."""
    return f"{x:,.1f}".replace("-", "−")  # a real minus


def score_table(results: Results) -> str:
    """A line per game: the published scores and ours, in both of the paper's metrics."""
    lines = []
    for g, game in enumerate(results.suite.envs):
        steps = steps_of(results, game)
        cells = [game, *(points(column[g]) for column in results.published.values())]
        if results.complete[g]:
            cells += [f"**{points(results.last[g].mean())}**", points(results.all[g].mean())]
        else:
            cells += [f"{(~np.isnan(results.last[g])).sum()} of {results.last.shape[1]} runs", "–"]
        lines.append([*cells, f"{steps:,}" if steps else "–"])
    header = ["game", "random", "human", *PAPER.values(), "ours", "ours, all of training"]
    return markdown([*header, "our steps"], lines)


def normalised_table(results: Results) -> str:
    """Median and interquartile mean over the complete games, random play 0 and a human 1."""
    done = results.complete
    zero, one = (results.published[name][done] for name in ("random", "human"))
    lines = []
    for column, name in PAPER.items():
        scaled = normalise(results.published[column][done], zero, one)  # (G,)
        lines.append([name, number(median(scaled)), number(iqm(scaled))])
    for name, scores in (("ours", results.last), ("ours, all of training", results.all)):
        scaled = normalise(scores[done], zero[:, None], one[:, None])  # (G, S)
        lines.append([name, with_interval(scaled, median), with_interval(scaled, iqm)])
    return markdown(["human-normalised", "median", "interquartile mean"], lines)


def won_table(results: Results) -> str:
    """Games won: as the paper prints it, as its Table 6 says for the complete games, with ours."""
    done = results.complete
    paper = {name: results.published[column][done] for column, name in PAPER.items()}
    ours = {"ours": results.last[done].mean(1)}
    compared = {
        "Table 6, these games": paper,
        "ours in place of PPO": {"A2C": paper["A2C"], "ACER": paper["ACER"], **ours},
        "ours beside PPO": {**paper, **ours},
    }
    lines = [[name, "49", *map(str, won[:3]), "–", str(won[3])] for name, won in TABLE2.items()]
    for name, scores in compared.items():
        won, games = games_won(scores), str(int(done.sum()))
        columns = (*PAPER.values(), "ours", "tie")
        lines.append([name, games, *(str(won.get(column, "–")) for column in columns)])
    return markdown(["games won", "games", *PAPER.values(), "ours", "tie"], lines)


def write_report(results: Results) -> str:
    """The whole report in Markdown, for a page in the folder of its picture."""
    versions = ", ".join(f"{package} {version}" for package, version in results.versions.items())
    games, seeds = results.last.shape
    done, runs = int(results.complete.sum()), int((~np.isnan(results.last)).sum())
    said = (
        f"{games} games × {seeds} seed{'s' * (seeds > 1)}; {versions}. "
        "Ours: the mean return of a run's last 100 games and, all of training, of all its games; "
        "whole games, unclipped rewards, averaged over the seeds. A2C, ACER and PPO: Table 6 of "
        "the paper, the last 100 games of 3 runs of 10M steps."
    )
    if any((steps_of(results, game) or PAPER_STEPS) < PAPER_STEPS for game in results.suite.envs):
        said += " Ours had fewer steps, as the table says."
    if runs < games * seeds:
        said += f" {runs} of {games * seeds} runs are in, {done} of {games} games are complete."
    parts = [said, score_table(results), f"![{results.name}: curves]({results.name}.png)"]
    if done:
        over = f"over {done} game{'s' * (done > 1)}"
        scaled = f"Scaled so that random play is 0 and a human 1, {over}, of which each counts by "
        scaled += "its mean over the seeds."
        if seeds > 1:
            scaled += " In brackets 95% intervals, a bootstrap over our seeds within each game."
        won = (
            f"Games won, in the mean of the last 100 games; ours {over}, rounded to Table 6's one "
            "decimal. So rounded, Pong is a tie between ACER and PPO: counted from Table 6, A2C, "
            "ACER and PPO win 1, 27 and 19 of all 49 games and 2 are ties, where Table 2 says 1, "
            "28, 19 and 1. The paper has no scores per game for the mean over all of training: in "
            "that metric ours cannot be compared."
        )
        parts += [scaled, normalised_table(results), won, won_table(results)]
    return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------------------------------- pictures
def draw_curves(results: Results, path: Path) -> None:
    """A panel per game: return against steps, mean and range over the seeds, the paper's PPO."""
    games, seeds = results.last.shape
    columns = min(games, 7)
    lines = -(-games // columns)
    width, height = (2.3, 1.9) if games > 4 else (3.9, 2.8)  # of a panel, in inches
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(width * columns, height * lines + 0.6),
        layout="constrained",
        squeeze=False,
    )
    (setting,) = results.suite.settings
    label = "ours, mean and range over seeds" if seeds > 1 else "ours, one seed"
    ours = {"color": COLOURS[0], "linewidth": 1.6, "label": label}
    theirs = {"color": COLOURS[3], "linewidth": 1.4, "linestyle": "--"}
    theirs["label"] = "the paper's PPO after 10M steps, last 100 games"
    for g, (axes, game) in enumerate(zip(grid.flat, results.suite.envs)):
        axes.set_title(game, fontsize=11)
        budget = steps_of(results, game) or results.suite.budget(game)
        axes.set_xticks([0, budget / 2, budget])
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g}M" if x >= 1e5 else f"{x:,.0f}")
        if not results.complete[g]:  # no average of what is not all there
            done = int((~np.isnan(results.last[g])).sum())
            axes.text(0.5, 0.5, f"{done} of {seeds} runs", ha="center", transform=axes.transAxes)
            axes.set_yticks([])
            continue
        curves = smooth(curves_of(results.rows, setting, game))  # (S, CURVE_POINTS)
        started = ~np.isnan(curves).any(0)  # from where every seed has a value
        steps = max(row["steps"] for row in results.rows if row["env"] == game)
        x = ((np.arange(CURVE_POINTS) + 1) * steps / CURVE_POINTS)[started]
        y = curves[:, started]  # (S, windows)
        axes.plot(x, y.mean(0), **ours)
        axes.fill_between(x, y.min(0), y.max(0), color=COLOURS[0], alpha=0.18, linewidth=0)
        axes.axhline(results.published["ppo"][g], **theirs)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.10g}".replace("-", "−"))
        axes.yaxis.set_major_locator(plt.MaxNLocator(4))
    for axes in grid.flat[games:]:
        axes.axis("off")
    handles = [plt.Line2D([], [], **style) for style in (ours, theirs)]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    figure.supxlabel("environment steps of 4 frames", fontsize=11)
    figure.supylabel("return of a game", fontsize=11)
    save(figure, path)


# -------------------------------------------------------------------------------------------- main
def main(args: Args) -> int:
    """Make the reports; returns the exit code."""
    names = args.suites or [name for name in ATARI_SUITES if load(args.results, name)]
    if not names:
        print("no results of the Atari suites: python -m benchmarks.run atari-small")
    plt.rcParams.update(STYLE)
    for name in names:
        if name.partition("@")[0] not in ATARI_SUITES:
            refuse(f"{name} is not one of {', '.join(ATARI_SUITES)}")
        results = collect(args.results, name)
        draw_curves(results, args.docs / f"{name}.png")
        report = write_report(results)
        print(f"# {name}\n\n{report}")
        put_into(args.docs / "atari.md", name, report)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
