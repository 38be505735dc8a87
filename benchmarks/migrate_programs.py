"""Runs `halfstep migrate` on public programs, and reports the results and the time.

    python benchmarks/migrate_programs.py FOLDER ... [--each 4] [--out migrate_programs.json]

A folder contains Python files named `owner+repository__path.py`. At most `--each` files of a
repository are used, because some repositories contain many copies of a script. The script cannot
decide whether a translation is correct; a reader must. A program counts as suspicious if its
translation breaks a rule that holds for all correct translations. Suspicious programs are listed by
name.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import platform
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from halfstep.errors import UserError
from halfstep.migrate import TARGETS, migrate

NOTE = "# halfstep migrate: "
READ = "judged_by_reading"


def calls(tree: ast.AST, method: str) -> list[ast.Call]:
    """Return the calls of a method, in the order of their lines."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
    ]
    return sorted(found, key=lambda call: call.lineno)


def owner(call: ast.Call) -> str:
    """Return the code of the object on which a method is called."""
    assert isinstance(call.func, ast.Attribute)
    return ast.unparse(call.func.value)


def dropped(tree: ast.AST) -> set[ast.AST]:
    """Return the calls of `backward` that are followed by a call of `zero_grad`."""
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one, two in itertools.pairwise(body if isinstance(body, list) else ()):
            both = isinstance(one, ast.Expr) and isinstance(two, ast.Expr)
            if both and ast.unparse(two).endswith(".zero_grad()"):
                found.add(one.value)
    return found


def broken_rules(after: str, to: str, level: str | None) -> list[str]:
    """Return the rules of a correct translation that a rewritten program breaks."""
    tree = ast.parse(after)
    name = "engine" if to == "halfstep" else "scaler"
    found = []
    ours = [call for call in calls(tree, "step") if owner(call).endswith(name)]
    backwards = [call for call in calls(tree, "backward") if call not in dropped(tree)]
    scaled = set(re.findall(rf"(\w+) = [\w.]*{name}\.scale\(", after))
    whole = [call for call in backwards if name in owner(call) or owner(call) in scaled]
    if not ours:
        found.append("nothing steps")
    if not whole:
        found.append("no loss is scaled")
    if len(whole) < len([call for call in backwards if owner(call) not in {"self", "ctx"}]):
        found.append("a backward is not scaled")
    if not calls(tree, "autocast") and (to == "torch" or level not in {"O0", "O2", "O3"}):
        found.append("no autocast")
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            found += broken_order(function, to, name)
    return sorted(set(found))


def broken_order(function: ast.FunctionDef, to: str, name: str) -> list[str]:
    """Return a broken rule if a function clips gradients that are still scaled."""
    events = []
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            if re.search(r"clip_grad_(norm|value)", text):
                events.append((node.lineno, "clip"))
            elif text.endswith("backward") and name in text:
                events.append((node.lineno, "backward"))
            elif text.endswith(("unscale_", f"{name}.step")):
                events.append((node.lineno, "unscaled"))
    last, found = "unscaled", []
    for _, event in sorted(events):
        if event == "clip" and last == "backward":
            found.append(f"clips before the step of {to}")
        elif event != "clip":
            last = event
    return found


def trains_with_amp(text: str) -> bool:
    """Tell whether a file both initializes Apex's amp and scales a loss."""
    try:
        code = ast.unparse(ast.parse(text))
    except (SyntaxError, ValueError):
        return False
    return all(each in code for each in ("apex", "amp.initialize(", "amp.scale_loss("))


def judge(text: str, to: str) -> dict[str, object]:
    """Migrate a program, and return the verdict with its details."""
    start = time.process_time()
    try:
        done = migrate(text, to)
    except UserError:
        return {"verdict": "not Python 3"}
    spent = 1000 * (time.process_time() - start) / max(1, text.count("\n"))
    kept = [line for line in done.after.splitlines() if NOTE not in line]
    left = kept == text.replace("\r\n", "\n").splitlines()
    result: dict[str, object] = {"ms_a_line": spent, "notes": len(done.notes)}
    if left:
        result["verdict"] = "left with reasons" if done.notes else "nothing of amp"
        return result
    level = re.search(r"opt_level\s*=\s*[\"'](O\d)", text)
    rules = broken_rules(done.after, to, level.group(1) if level else None)
    if migrate(done.after, to).after != done.after:
        rules.append("is rewritten again")
    result["rules"] = rules
    rewritten = "rewritten with notes" if done.notes else "rewritten"
    result["verdict"] = "suspicious" if rules else rewritten
    return result


def main() -> None:
    """Migrate the programs of the folders, and report the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chosen = defaultdict(list)
    for folder in arguments.folders:
        for path in sorted(folder.glob("*.py")):
            text = path.read_text()
            if trains_with_amp(text):
                chosen[path.name.partition("__")[0]].append((path.name, text))
    programs = [each for found in chosen.values() for each in found[: arguments.each]]
    report: dict[str, object] = {
        "programs": len(programs),
        "repositories": len(chosen),
        "lines": sum(text.count("\n") for _, text in programs),
        "python": platform.python_version(),
    }
    for to in TARGETS:
        results = {name: judge(text, to) for name, text in programs}
        spent = sorted(float(str(each.get("ms_a_line", 0))) for each in results.values())
        report[to] = {
            "verdicts": dict(Counter(str(each["verdict"]) for each in results.values())),
            "ms_a_line": {"median": spent[len(spent) // 2], "largest": spent[-1]},
        }
        for name, each in results.items():
            if each["verdict"] == "suspicious":
                print(to, name, each["rules"], file=sys.stderr)
    if arguments.out and arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        if READ in before:
            report[READ] = before[READ]  # written by a person
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
