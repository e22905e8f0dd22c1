"""Tables and pictures from the results files alone, byte for byte the same each time.

    python -m benchmarks.report table1        to the terminal, docs/ and README.md
    python -m benchmarks.report               the same for every suite that has results
    python -m benchmarks.atari                likewise for the Atari suites

Between <!-- SUITE --> and <!-- /SUITE --> README.md has the summary of a suite's report, a page of
docs/ the whole of it.
"""

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import tyro
from PIL import Image

from benchmarks.run import CURVE_POINTS, ROOT, digest, read_results, script_path
from benchmarks.suites import ATARI_SUITES, RANDOM, SUITES, Suite, suite_of

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PAPER = {  # Schulman et al. 2017, Table 1: its name for a setting, its score
    "none": ("no clipping or penalty", -0.39),
    "clip-0.1": ("clipping, ε = 0.1", 0.76),
    "clip-0.2": ("clipping, ε = 0.2", 0.82),
    "clip-0.3": ("clipping, ε = 0.3", 0.70),
    "adaptive-0.003": ("adaptive KL, d_targ = 0.003", 0.68),
    "adaptive-0.01": ("adaptive KL, d_targ = 0.01", 0.74),
    "adaptive-0.03": ("adaptive KL, d_targ = 0.03", 0.71),
    "fixed-0.3": ("fixed KL, β = 0.3", 0.62),
    "fixed-1": ("fixed KL, β = 1", 0.71),
    "fixed-3": ("fixed KL, β = 3", 0.72),
    "fixed-10": ("fixed KL, β = 10", 0.69),
}
DRAWN = {"table1": ("clip-0.2", "adaptive-0.01", "fixed-3", "none")}  # the others' curves are grey
ZEROS = {  # a reading of "random policy": its name in the tables; the first is the default
    "untrained": "untrained policy",
    "untrained-std-1": "untrained policy, std 1",
    "uniform": "uniform actions",
}
RESAMPLES = 10_000
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999933")
STYLE = {  # Okabe and Ito's colours; nothing that depends on the machine
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "figure.dpi": 130,
    "savefig.dpi": 130,
}


@dataclass
class Args:
    """Tables and pictures from the results files."""

    suites: tyro.conf.Positional[tuple[str, ...]] = ()  # none: all that have results
    results: Path = ROOT / "benchmarks" / "results"  # folder of the results
    docs: Path = ROOT / "docs"  # folder of the pictures, and of the pages that get the tables
    readme: Path = ROOT / "README.md"  # gets the summaries


# -------------------------------------------------------------------------------------- statistics
def normalise(scores, zero, one):
    """Shift and scale so that zero becomes 0 and one becomes 1. Arrays of one shape, or scalars."""
    return (np.asarray(scores) - zero) / (np.asarray(one) - zero)


def iqm(scores) -> np.ndarray:
    """Interquartile mean: of scores (..., n), without the lowest and the highest quarter -> (...).

    Agarwal et al. 2021 (2108.13264); a quarter of n is rounded down. NaN where a score is NaN.
    """
    missing = np.isnan(scores).any(-1)
    scores = np.sort(scores, axis=-1)  # puts NaN last, where it would be cut off
    cut = scores.shape[-1] // 4
    return np.where(missing, np.nan, scores[..., cut : scores.shape[-1] - cut].mean(-1))


def stratified_bootstrap(scores, statistic, resamples: int = RESAMPLES, seed: int = 0):
    """95% percentile interval of statistic over scores (environments E, seeds S): (low, high).

    Draws S seeds with replacement within each environment; statistic takes (resamples, E * S) to
    (resamples,). Agarwal et al. 2021 (2108.13264), section 4.1.
    """
    E, S = scores.shape
    draws = np.random.default_rng(seed).integers(S, size=(resamples, E, S))
    samples = scores[np.arange(E)[:, None], draws]  # (resamples, E, S)
    return tuple(np.percentile(statistic(samples.reshape(resamples, E * S)), (2.5, 97.5)))


def mean(scores) -> np.ndarray:
    """Mean over the last axis: (..., n) -> (...)."""
    return np.mean(scores, axis=-1)


# ------------------------------------------------------------------------------- from the results
def refuse(message: str):
    """Results that cannot be reported: exit code 2 and one line."""
    print(f"benchmarks.report: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def load(results: Path, name: str) -> list[dict]:
    """The lines of results/NAME.jsonl; none if there is no such file. Exits with 2 if damaged."""
    try:
        return read_results(results / f"{name}.jsonl")
    except ValueError as error:
        refuse(str(error))


def check_versions(rows: list[dict], simulator: str = "mujoco") -> dict[str, str]:
    """The one gymnasium and simulator version of all rows; exits with 2 where any is mixed."""
    for package in ("gymnasium", simulator):
        found = sorted({str(row["versions"].get(package)) for row in rows})
        if len(found) > 1:
            refuse(f"results of {package} {' and '.join(found)} cannot be compared")
    for task in {row["env"].partition("-v")[0] for row in rows}:
        found = sorted({row["env"] for row in rows if row["env"].partition("-v")[0] == task})
        if len(found) > 1:
            refuse(f"results of {' and '.join(found)} cannot be compared")
    return {package: rows[0]["versions"][package] for package in ("gymnasium", simulator)}


def check_digests(name: str, rows: list[dict]) -> None:
    """Refuse results of two versions of one script; warn where it is not today's version."""
    scripts: dict[str, set] = {}
    for row in rows:
        scripts.setdefault(row["command"].split()[0], set()).add(row["digest"])
    for script, digests in scripts.items():
        if len(digests) > 1:
            refuse(f"{name} mixes results of {len(digests)} versions of {script}: --recheck them")
        paths = [p for p in (script_path(script), ROOT / "benchmarks" / script) if p.is_file()]
        if paths and digest(paths[0]) not in digests:
            print(f"note: {name}: {script} has changed since, --recheck them", file=sys.stderr)


def scores_of(rows: list[dict], setting: str, envs, seeds, column="score") -> np.ndarray:
    """Scores of a setting, (environments, seeds); NaN where a run is missing."""
    found = {(row["env"], row["seed"]): row[column] for row in rows if row["setting"] == setting}
    return np.array([[found.get((env, seed), np.nan) for seed in seeds] for env in envs])


@dataclass
class Results:
    """All that a report is made of. E environments, S seeds."""

    name: str
    suite: Suite
    settings: list[str]  # the borrowed ones first
    rows: list[dict]  # with the borrowed ones, under their name here
    scores: dict[str, np.ndarray]  # setting: (E, S), NaN where missing
    zeros: dict[str, np.ndarray]  # reading: (E,), NaN where missing
    best: np.ndarray  # (E,), best single run
    versions: dict[str, str]  # of gymnasium and the simulator

    def scaled(self, setting: str, zero: str) -> np.ndarray:
        """Normalised scores (E, S); NaN where missing or where the best is not above the zero."""
        low, high = self.zeros[zero][:, None], self.best[:, None]  # (E, 1)
        return normalise(self.scores[setting], low, np.where(high > low, high, np.nan))


def collect(results: Path, name: str) -> Results:
    """Read and check a suite's results, those that it borrows and those of the random policies."""
    suite = suite_of(name)
    rows = [row for row in load(results, name) if row["setting"] in suite.settings]
    check_digests(name, rows)
    for here, (other, setting) in suite.borrowed.items():
        borrowed = [row for row in load(results, other) if row["setting"] == setting]
        check_digests(f"{name}, {here}", borrowed)
        rows = [*({**row, "setting": here} for row in borrowed if row["env"] in suite.envs), *rows]
    rows = [row for row in rows if row["seed"] in suite.seeds]
    if not rows:
        refuse(f"no results of {name} in {results}: python -m benchmarks.run {name}")
    random_rows = [row for row in load(results, "random") if row["env"] in suite.envs]
    check_digests("random", random_rows)
    settings = [*suite.borrowed, *suite.settings]
    scores = {setting: scores_of(rows, setting, suite.envs, suite.seeds) for setting in settings}
    seeds = sorted({row["seed"] for row in random_rows}) or suite.seeds
    zeros = {key: scores_of(random_rows, key, suite.envs, seeds).mean(1) for key in RANDOM}
    everything = np.stack(list(scores.values()))  # (settings, E, S)
    best = np.where(np.isnan(everything), -np.inf, everything).max((0, 2))
    versions = check_versions([*rows, *random_rows], "ale-py" if suite.all_cores else "mujoco")
    return Results(name, suite, settings, rows, scores, zeros, best, versions)


# ------------------------------------------------------------------------------------------ tables
def markdown(header: list[str], lines: list[list[str]]) -> str:
    """A Markdown table, first column to the left, the others to the right."""
    rule = [":--", *["--:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))


def number(x: float, like: float | None = None) -> str:
    """Two decimals; none if x (or `like`, if given) is 100 or more; a dash for NaN, infinity."""
    if not np.isfinite(x):
        return "–"
    text = f"{x:,.0f}" if abs(x if like is None else like) >= 100 else f"{x:.2f}"
    return text.replace("-", "−")  # a real minus


def interval(scores: np.ndarray) -> tuple[float, float]:
    """95% interval of the mean of scores (E, S); NaN for one seed or with a run missing."""
    if scores.shape[1] < 2 or np.isnan(scores).any():
        return np.nan, np.nan
    return stratified_bootstrap(scores, mean)


def label_of(setting: str) -> str:
    return PAPER[setting][0] if setting in PAPER else setting


def drawn_label(setting: str) -> str:
    """A setting's name in a picture, with the subscript of d_targ."""
    return label_of(setting).replace("d_targ", r"$d_\mathrm{targ}$")


def is_table1(name: str) -> bool:
    """Whether a suite has the paper's Table 1 to stand beside."""
    return name.partition("@")[0] in ("table1", "table1-2017", "quick")


def score_table(results: Results, short: bool = False) -> str:
    """Setting, the paper's score, ours with its interval; unless short, the other statistics."""
    lines, default = [], next(iter(ZEROS))
    for setting in results.settings:
        scores = results.scores[setting]  # (E, S)
        done, total = int((~np.isnan(scores)).sum()), scores.size
        cells = [label_of(setting)]
        if is_table1(results.name):
            cells.append(number(PAPER[setting][1]))
        if done < total:
            cells += [f"{done} of {total} runs"] + ["–"] * (1 if short else len(ZEROS) + 1)
        else:
            scaled = results.scaled(setting, default)
            low, high = interval(scaled)
            between = f"[{number(low)}, {number(high)}]" if np.isfinite(low) else "–"
            mark = "**" if np.isfinite(scaled.mean()) else ""
            cells += [f"{mark}{number(scaled.mean())}{mark}", between]
            if not short:
                cells.append(number(iqm(scaled.ravel())))
                cells += [number(results.scaled(setting, zero).mean()) for zero in [*ZEROS][1:]]
        lines.append(cells)
    header = ["setting", "paper"] if is_table1(results.name) else ["setting"]
    header += ["ours", "95% interval"]
    if not short:
        header.append("interquartile mean")
        header += [f"ours, 0 = {text}" for text in [*ZEROS.values()][1:]]
    return markdown(header, lines)


def published() -> list[dict]:
    """Scores that other libraries print for PPO at 1M steps: the rows of mujoco_scores.csv."""
    with open(ROOT / "benchmarks" / "mujoco_scores.csv", newline="") as file:
        return list(csv.DictReader(file))


def return_table(results: Results) -> str:
    """Raw returns per environment: mean ± standard deviation over the seeds.

    Below those of Figure 3 stand the published ones, with the version of the environments.
    """
    lines = []
    for setting in results.settings:
        cells = [label_of(setting)]
        for scores in results.scores[setting]:  # (S,)
            done = int((~np.isnan(scores)).sum())
            if done < len(scores):
                cells.append(f"{done} of {len(scores)}")
            elif done == 1:
                cells.append(number(scores[0]))
            else:
                cells.append(
                    f"{number(scores.mean())} ± {number(scores.std(ddof=1), scores.mean())}"
                )
        lines.append(cells)
    if results.name == "figure3":
        rows = published()
        for name in dict.fromkeys(row["implementation"] for row in rows):
            found = {row["env"]: row for row in rows if row["implementation"] == name}
            (env_version,) = {row["env_version"] for row in found.values()}
            tasks = [env.partition("-")[0] for env in results.suite.envs]
            means = [number(float(found[x]["mean"])) if x in found else "" for x in tasks]
            lines.append([f"{name}, -{env_version}", *means])
    return markdown(["setting", *results.suite.envs], lines)


def normaliser_table(results: Results) -> str:
    """What became 0 and 1 in each environment, in every reading."""
    lines = [[f"0: {text}", *map(number, results.zeros[zero])] for zero, text in ZEROS.items()]
    lines.append(["1: best single run", *map(number, results.best)])
    return markdown(["", *results.suite.envs], lines)


def not_told_apart(results: Results) -> str:
    """Which complete settings' intervals overlap with that of the best one."""
    default = next(iter(ZEROS))
    scaled = {key: results.scaled(key, default) for key in results.settings}
    complete = {key: interval(x) for key, x in scaled.items() if not np.isnan(x).any()}
    complete = {key: bounds for key, bounds in complete.items() if np.isfinite(bounds[0])}
    if len(complete) < 2:
        return ""
    best = max(complete, key=lambda key: scaled[key].mean())
    close = [k for k, (_, high) in complete.items() if k != best and high >= complete[best][0]]
    if not close:
        return f"\n\nNo other interval reaches that of {label_of(best)}."
    names = "; ".join(label_of(key) for key in close)
    return f"\n\nThe interval of {label_of(best)}, the best, overlaps with those of: {names}."


def pictures_of(name: str) -> dict[str, str]:
    """File names of a suite's pictures: "scores" and "curves"."""
    if name in ("figure3", "atari-bf16"):
        return {"curves": f"{name}.png"}
    return {"scores": f"{name}.png", "curves": f"{name}-curves.png"}


def conditions(results: Results) -> str:
    """What was run: environments, seeds, steps, versions, processor, hours."""
    rows, envs, seeds = results.rows, len(results.suite.envs), len(results.suite.seeds)
    budgets = [row["args"].get("total_timesteps") or row["steps"] for row in rows]
    budget = " to ".join(f"{steps:,}" for steps in sorted({min(budgets), max(budgets)}))
    versions = ", ".join(f"{package} {version}" for package, version in results.versions.items())
    torch = ", ".join(sorted({row["versions"]["torch"].partition("+")[0] for row in rows}))
    processors = ", ".join(sorted({row["processor"] for row in rows}))
    hours = sum(row["seconds"] for row in rows) / 3600
    cores = "all cores" if results.suite.all_cores else "one core"
    return (
        f"{envs} environment{'s' * (envs > 1)} × {seeds} seed{'s' * (seeds > 1)} × {budget} steps; "
        f"{versions}, torch {torch}; {len(rows)} run{'s' * (len(rows) > 1)}, in sum "
        f"{hours:.1f} hours of {cores} ({processors})."
    )


def what_is_missing(results: Results) -> list[str]:
    """A sentence on missing runs, if there are any."""
    missing = sum(int(np.isnan(scores).sum()) for scores in results.scores.values())
    total = sum(scores.size for scores in results.scores.values())
    return [f"{missing} of {total} runs are missing."] if missing else []


def write_summary(results: Results) -> str:
    """What README.md shows: the returns of Figure 3, of other suites the scores."""
    if results.name == "figure3":
        parts = [return_table(results)]
    else:
        parts = [
            score_table(results, short=True) + not_told_apart(results),
            "In each environment 0 is the untrained policy and 1 the best single run of the table; "
            "a row is the mean over environments and seeds, its interval a bootstrap over seeds.",
        ]
    return "\n\n".join([*parts, *what_is_missing(results), conditions(results)]) + "\n"


def scaled_scores(results: Results) -> list[str]:
    """How the scores are scaled, and their table, in paragraphs."""
    best, zeros = results.best, results.zeros[next(iter(ZEROS))]
    unscaled = [env for env, x, y in zip(results.suite.envs, zeros, best) if not y > x]
    parts = [
        "A run's score is the mean return of its last 100 episodes, scaled so that the untrained "
        "policy is 0 and the best single run of this table 1, then averaged over environments and "
        f"seeds. The interval is a bootstrap over seeds within each environment ({RESAMPLES:,} "
        "resamples). A row with runs missing has no average."
    ]
    if unscaled:
        parts.append(
            f"No scaled scores: in {', '.join(unscaled)} the best run is not above the untrained "
            "policy, or that policy has not been measured (python -m benchmarks.run random)."
        )
    return [*parts, score_table(results) + not_told_apart(results)]


def write_report(results: Results) -> str:
    """The whole report in Markdown, for a page in the folder of its pictures."""
    has_zeros = not results.suite.all_cores  # no suite measures random play on Atari
    parts = [conditions(results), *what_is_missing(results)]
    if has_zeros:
        parts += scaled_scores(results)
    pictures = pictures_of(results.name).items()
    parts += [f"![{results.name}: {what}]({file})" for what, file in pictures]
    parts.append("Returns, mean ± standard deviation over the seeds:\n\n" + return_table(results))
    if has_zeros:
        parts.append("What became 0 and 1:\n\n" + normaliser_table(results))
    return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------------------------------- pictures
def save(figure, path: Path) -> None:
    """Write a figure as PNG in 256 colours: the same bytes for the same figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer)
    plt.close(figure)
    picture = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(path, format="PNG", optimize=True)


def draw_scores(results: Results, path: Path) -> None:
    """Bars of the normalised scores with their intervals, beside the paper's values."""
    default, settings = next(iter(ZEROS)), results.settings
    rows = np.arange(len(settings))[::-1]  # the first setting on top
    scaled = [results.scaled(setting, default) for setting in settings]
    values = np.array([x.mean() for x in scaled])  # NaN: a run is missing
    bounds = np.array([interval(x) for x in scaled])  # (settings, 2)
    figure, axes = plt.subplots(figsize=(8, 1.4 + 0.42 * len(settings)), layout="constrained")
    axes.barh(rows, values, height=0.62, color=COLOURS[5], label="ours")
    for row, value, (low, high), x in zip(rows, values, bounds, scaled):
        if np.isfinite(low):
            axes.plot([low, high], [row, row], color="black", linewidth=1.6)
            axes.plot([low, high], [row, row], "|", color="black", markersize=8)
        if np.isnan(value):
            axes.text(0.01, row, f"{(~np.isnan(x)).sum()} of {x.size} runs", va="center")
    if np.isfinite(bounds).any():
        axes.plot([], [], color="black", linewidth=1.6, label="95% interval")
    if is_table1(results.name):
        paper = [PAPER[setting][1] for setting in settings]
        beside = rows + 0.2  # not on the interval
        axes.plot(paper, beside, "D", color=COLOURS[3], markersize=7, label="paper, 2017")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_ylim(-0.6, len(settings) - 0.4)
    axes.set_yticks(rows, [drawn_label(setting) for setting in settings])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("normalised score: 0 untrained policy, 1 best run")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    save(figure, path)


def curves_of(rows: list[dict], setting: str, env: str) -> np.ndarray:
    """Learning curves (runs, CURVE_POINTS); a window without an episode takes the one before."""
    rows = [row for row in rows if row["setting"] == setting and row["env"] == env]
    curves = np.full((len(rows), CURVE_POINTS), np.nan)
    for curve, row in zip(curves, sorted(rows, key=lambda row: row["seed"])):
        value = np.nan
        for i, point in enumerate(row["curve"]):
            value = curve[i] = value if point is None else point
    return curves


def smooth(curves: np.ndarray, width: int = 9) -> np.ndarray:
    """Mean over the `width` windows around each, fewer at the ends and where there is no value."""
    half = width // 2
    around = [curves[..., max(0, i - half) : i + half + 1] for i in range(curves.shape[-1])]
    known = [~np.isnan(x) for x in around]
    sums = [np.where(k, x, 0).sum(-1) for k, x in zip(known, around)]
    counts = [k.sum(-1) for k in known]
    return np.stack(
        [np.where(n > 0, s / np.maximum(n, 1), np.nan) for s, n in zip(sums, counts)], -1
    )


def draw_curves(results: Results, path: Path) -> None:
    """A panel per environment: return against steps, mean and range over the seeds."""
    drawn = [*DRAWN.get(results.name.partition("@")[0], results.settings)]
    envs = results.suite.envs
    columns = min(3, len(envs) + 1)
    lines = -(-(len(envs) + 1) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(3.3 * columns, 2.6 * lines), layout="constrained", squeeze=False
    )
    default = next(iter(ZEROS))
    for e, (axes, env) in enumerate(zip(grid.flat, envs)):
        steps = max(row["steps"] for row in results.rows if row["env"] == env)
        x = (np.arange(CURVE_POINTS) + 1) * steps / CURVE_POINTS
        for setting in [s for s in results.settings if s not in drawn] + drawn:
            curves = smooth(curves_of(results.rows, setting, env))
            started = ~np.isnan(curves).any(0)  # from where every seed has a value
            if len(curves) < len(results.suite.seeds) or not started.any():
                continue  # no average of what is not all there
            x_, y = x[started], curves[:, started]
            if setting not in drawn:
                axes.plot(x_, y.mean(0), color="#BBBBBB", linewidth=0.9, zorder=1)
                continue
            colour = COLOURS[drawn.index(setting) % len(COLOURS)]
            axes.plot(x_, y.mean(0), color=colour, linewidth=1.6)
            axes.fill_between(x_, y.min(0), y.max(0), color=colour, alpha=0.13, linewidth=0)
        low, high = results.zeros[default][e], results.best[e]
        if high > low:  # what falls far below the untrained policy would flatten all the rest
            bottom, top = axes.get_ylim()
            axes.set_ylim(max(bottom, low - 0.5 * (high - low)), top)
        axes.set_title(env, fontsize=11)
        budget = max(row["args"].get("total_timesteps") or row["steps"] for row in results.rows)
        axes.set_xticks([0, budget / 2, budget])
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g}M" if x >= 1e5 else f"{x:,.0f}")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.6g}".replace("-", "−"))
        axes.yaxis.set_major_locator(plt.MaxNLocator(5))
    legend, *empty = grid.flat[len(envs) :]
    for axes in (legend, *empty):
        axes.axis("off")
    for setting in drawn:
        colour = COLOURS[drawn.index(setting) % len(COLOURS)]
        runs = results.scores[setting]  # (E, S)
        done = int((~np.isnan(runs)).sum())
        missing = f" ({done} of {runs.size} runs)" if done < runs.size else ""
        legend.plot([], [], color=colour, linewidth=3, label=drawn_label(setting) + missing)
    if len(drawn) < len(results.settings):
        legend.plot([], [], color="#BBBBBB", label="other settings")
    many = len(results.suite.seeds) > 1
    title = "mean and range over seeds" if many else "one seed"
    box = legend.legend(
        loc="center left", frameon=False, title=title, alignment="left", fontsize=10
    )
    box.set_in_layout(False)  # a long label reaches into the empty panel, and widens no column
    figure.supxlabel("environment steps", fontsize=11)
    figure.supylabel("return of an episode", fontsize=11)
    save(figure, path)


# -------------------------------------------------------------------------------------------- main
def between_markers(text: str, name: str, report: str) -> str | None:
    """text with report between <!-- NAME --> and <!-- /NAME -->; None without these markers."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        return None
    return f"{text.partition(start)[0]}{start}\n\n{report}\n{end}{text.partition(end)[2]}"


def put_into(page: Path, name: str, report: str) -> bool:
    """Write report between its markers in a page; whether it has these markers."""
    old = page.read_text() if page.is_file() else ""
    new = between_markers(old, name, report)
    if new is not None and new != old:
        page.write_text(new)
    return new is not None


def main(args: Args) -> int:
    """Make the reports; returns the exit code, 1 if README.md has no place for Table 1."""
    # Apart: the zero of the others; what benchmarks/atari.py and benchmarks/rlhf.py report.
    apart = {"random", "rlhf", *ATARI_SUITES}
    sources = {s: [s, *(other for other, _ in SUITES[s].borrowed.values())] for s in SUITES}
    filled = [s for s in SUITES if any(load(args.results, source) for source in sources[s])]
    names = args.suites or [s for s in filled if s not in apart]
    if not names:
        refuse(f"no results in {args.results}: python -m benchmarks.run quick")
    code = 0
    plt.rcParams.update(STYLE)
    for name in names:
        if name.partition("@")[0] in ATARI_SUITES:
            refuse(f"{name} has a report of its own: python -m benchmarks.atari {name}")
        try:
            results = collect(args.results, name)
        except KeyError as error:
            refuse(error.args[0])
        pictures = pictures_of(name)
        draw_curves(results, args.docs / pictures["curves"])
        if "scores" in pictures:
            draw_scores(results, args.docs / pictures["scores"])
        report = write_report(results)
        print(f"# {name}\n\n{report}")
        for page in sorted(args.docs.glob("*.md")):
            put_into(page, name, report)
        if not put_into(args.readme, name, write_summary(results)) and name == "table1":
            markers = f"<!-- {name} --> and <!-- /{name} -->"
            print(f"{args.readme.name} has no {markers}: not written", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
