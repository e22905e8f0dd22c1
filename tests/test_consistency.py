"""What two scripts share they say in the same words; --fix SCRIPT copies its words to the others.

A top-level function or class of the same name has the same source in every script, except those in
OWN. An argument of the same name has the same type and, up to the paper's value in parentheses, the
same help. Lines between `# [same: NAME]` and `# [/same]` are the same wherever NAME occurs. The
banners come in the same order. No script imports another.
"""

import ast
import difflib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["vpg_continuous.py", "ppo_continuous.py", "trpo_continuous.py", "ppo_atari.py"]
SCRIPTS += ["ppo_rlhf_tiny.py"]
OWN = {"Args", "main", "train_step", "check_args"}
# What must differ in one script.
DIFFERENT = {
    # games are seen by another network and cannot be saved
    "ppo_atari.py": {"Agent", "start_run", "save_checkpoint", "evaluate"},
    # no environments to save or play, and fewer objectives
    "ppo_rlhf_tiny.py": {"start_run", "report", "evaluate", "objective"},
}
STEPS = {"train_step", "value_step", "surrogate_and_kl", "policy_at"}  # built from formulas
BANNERS = ["arguments", "environment", "networks", "mathematics"]
BANNERS += ["saving, resuming, evaluating", "main"]
MORE_BANNERS = {"ppo_rlhf_tiny.py": {"stages before PPO"}}


def definitions(source: str) -> dict[str, str]:
    """Source of each top-level function, class and constant that is to be shared, by name."""
    lines, found = source.splitlines(keepends=True), {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in OWN:
            found[node.name] = "".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def regions(source: str) -> dict[str, str]:
    """Lines of each marked region, by name, with the markers."""
    pattern = r"^ *# \[same: ([^\]]+)\]\n.*?^ *# \[/same\]\n"
    return {m[1]: m[0] for m in re.finditer(pattern, source, re.MULTILINE | re.DOTALL)}


def arguments(source: str) -> dict[str, str]:
    """`type  # help` of each argument, without the default and the paper's value."""
    (node,) = (n for n in ast.parse(source).body if getattr(n, "name", None) == "Args")
    lines, found = source.splitlines(), {}
    for field in node.body:
        if isinstance(field, ast.AnnAssign):
            line = lines[field.lineno - 1]
            helptext = line.split("  # ", 1)[1]
            found[field.target.id] = f"{ast.unparse(field.annotation)}  # {helptext.split(' (')[0]}"
    return found


def differences(sources: dict[str, str]) -> list[str]:
    """A diff for each thing that two scripts say in different words."""
    found = []
    for kind in (definitions, regions, arguments):
        first: dict[str, tuple] = {}
        for script, source in sources.items():
            for name, text in kind(source).items():
                if name in DIFFERENT.get(script, ()):
                    continue
                where, words = first.setdefault(name, (script, text))
                if words != text:
                    diff = difflib.unified_diff(
                        words.splitlines(), text.splitlines(), where, script, lineterm=""
                    )
                    found.append(f"{name} differs in {script}:\n" + "\n".join(diff))
    return found


def fix(origin: str, sources: dict[str, str]) -> dict[str, str]:
    """The other scripts with the shared definitions and regions of `origin`."""
    fixed = {}
    for script, source in sources.items():
        for kind in (definitions, regions):
            right, mine = kind(sources[origin]), kind(source)
            own = {*DIFFERENT.get(script, ()), *DIFFERENT.get(origin, ())}
            for name in (right.keys() & mine.keys()) - own:
                source = source.replace(mine[name], right[name])
        fixed[script] = source
    return fixed


def read() -> dict[str, str]:
    return {script: (ROOT / script).read_text() for script in SCRIPTS}


def test_the_scripts_say_the_same_in_the_same_words():
    assert not (found := differences(read())), "\n\n".join(found)


@pytest.mark.parametrize("script", SCRIPTS)
def test_banners_imports_and_marks(script):
    source = read()[script]
    banners = re.findall(r"^# -{20,} (.+)$", source, re.MULTILINE)
    assert [name for name in banners if name not in MORE_BANNERS.get(script, ())] == BANNERS
    imported = set(re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE))
    assert not imported & {path.stem for path in ROOT.glob("*.py")} and "benchmarks" not in imported
    assert len(re.findall(r"# \[same: ", source)) == len(re.findall(r"# \[/same\]", source))


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_not_in_the_paper_is_marked_and_listed(script):
    source = read()[script]
    docstring = ast.get_docstring(ast.parse(source))
    assert "Not in the paper" in docstring and source.count("not in the paper") >= 3
    for flag in re.findall(r"--no-([\w-]+)", docstring):
        assert flag.replace("-", "_") in arguments(source), flag


@pytest.mark.parametrize("script", SCRIPTS)
def test_formulas_are_short_and_pure(script):
    """At most 25 lines, and nothing from outside but their arguments, torch, numpy and math."""
    source = read()[script]
    section = source.split(" mathematics\n")[1].split("\n# -----")[0]
    names = {node.name for node in ast.parse(source).body if hasattr(node, "name")}
    for node in ast.parse(section).body:
        if node.name in STEPS:
            continue
        assert node.end_lineno - node.lineno < 25, node.name
        assert ast.get_docstring(node), node.name
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        assert not used & (names - {node.name}) and "args" not in used, node.name


def without_extras(pin: str) -> str:
    """gymnasium==1 for gymnasium[mujoco]==1"""
    return re.sub(r"\[.*\]", "", pin)


def test_the_header_and_the_requirements_agree_with_the_imports():
    pins = {without_extras(pin) for pin in (ROOT / "requirements.txt").read_text().split()}
    everything = set()
    for script, source in read().items():
        header = source.split('"""')[0]
        needs = {without_extras(pin) for pin in re.findall(r'"([^"]+==[^"]+)"', header)}
        assert needs <= pins, script
        everything |= needs
        packages = {pin.split("=")[0].replace("-", "_") for pin in needs}
        imported = set(re.findall(r"^ *(?:from|import) (\w+)", source, re.MULTILINE))
        third_party = imported - sys.stdlib_module_names
        # tensorboard is behind torch.utils.tensorboard, moviepy behind the videos
        assert packages == third_party | ({"tensorboard", "moviepy"} & packages), script
        assert "torch.utils.tensorboard" in source
        films = "RecordVideo" in source or "save_video" in source
        assert films == ("moviepy" in packages), script
    assert everything == pins


def test_a_drift_is_found_and_fixed():
    a = "class Args:\n    x: int = 1  # size (Table 3: 1)\n\ndef f():\n    return 1\n"
    a += "# [same: r]\nx = 1\n# [/same]\n"
    b = a.replace("return 1", "return 2").replace("x = 1\n#", "x = 3\n#")
    c = a.replace("(Table 3: 1)", "(Table 5: 8)").replace("int = 1", "int = 8")
    d = a.replace("size", "length")
    assert differences({"a": a, "c": c}) == []
    assert len(differences({"a": a, "b": b})) == 2 and len(differences({"a": a, "d": d})) == 1
    assert fix("a", {"a": a, "b": b}) == {"a": a, "b": a}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fix"]:
        for script, source in fix(sys.argv[2], read()).items():
            (ROOT / script).write_text(source)
    print("\n\n".join(differences(read())) or "the scripts agree")
