"""A new signal with its cause is three files: the signal, the rule, and the program.

They suffice for a watch, its evidence, the printed verdict, the cause's page on the site, and the
tables of causes in both languages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

SIGNAL = '''
"""Counts the calls of `random.seed` by the loop, after its first step."""

from __future__ import annotations

from dataclasses import dataclass
import random
from typing import Any, ClassVar

from halfstep.doctor.record.sites import Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal


@dataclass(frozen=True, slots=True)
class Seeds:
    signal: ClassVar[str] = "seeds"
    count: int = 0
    steps: int = 0
    rate: float = float("nan")
    site: Site | None = None


class Seeding(Signal):
    def __init__(self, watched) -> None:
        super().__init__(watched)
        self.count = self.steps = 0
        self.mark = None

    def hooks(self):
        yield Hook(random, "seed", self.watched.in_loop(self.on_seed))

    def on_seed(self, original, /, *args: Any, **kwargs: Any):
        with self.watched.guard.own():
            self.count, self.mark = self.count + bool(self.steps), calling_line()
        return original(*args, **kwargs)

    def on_event(self, kind, mark, facts) -> None:
        self.steps += kind == "step"

    def freeze(self):
        return {"seeds": Seeds(self.count, self.steps, site=site(self.mark))}
'''
RULE = '''
"""The loop seeds the generator in each step."""

from halfstep.doctor.signals.seeds import Seeds
from halfstep.doctor.verdict import Finding, Rule


def judge(evidence):
    found = evidence.of(Seeds)
    if not found.count:
        return None
    facts = (f"{found.count} of {found.steps} steps",)
    return Finding("the generator is seeded in each step", facts, ("- seed",), site=found.site)


RULE = Rule("SEEDED", "a generator that is seeded", (99,), ("a/b#1",), frozenset({"seeds"}), judge)
'''
PROGRAM = """
import random
import torch
from torch import nn

CODE = "SEEDED"


def broken():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        random.seed(0)
        optimizer.zero_grad()
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
"""
CHECK = """
import io
import random
import sys
from pathlib import Path

import doctor.programs.updates
import halfstep.doctor.rules.updates
import halfstep.doctor.signals

added = Path(sys.argv[1])
halfstep.doctor.signals.__path__.append(str(added / "signals"))
halfstep.doctor.rules.updates.__path__.append(str(added / "rules"))
doctor.programs.updates.__path__.append(str(added / "programs"))

import cause_tables
import causes
from doctor.programs.updates import seeds as program
from halfstep.doctor import Watch, diagnose
from halfstep.doctor.record import from_json, sites
from halfstep.doctor.report.show import print_diagnosis
from halfstep.doctor.rules import rules
from halfstep.doctor.signals.seeds import Seeds

# The signal is outside of doctor's folder, whose lines are no lines of the program.
sites._kinds[str(added / "signals" / "seeds.py")] = sites._TRANSPARENT
seed = random.seed
with Watch() as watch:
    program.broken()
assert random.seed == seed
evidence = watch.close()
assert "seeds" in evidence.signals and not watch.troubles
for each in (evidence, from_json(evidence.to_json())):
    (verdict,) = diagnose(each).verdicts
    assert (verdict.code, verdict.finding.facts) == ("SEEDED", ("2 of 3 steps",))
    assert verdict.finding.site.text == "random.seed(0)"
    assert each.of(Seeds).rate != each.of(Seeds).rate  # NaN outlives JSON
    shown = io.StringIO()
    print_diagnosis(diagnose(each), shown)
    for text in ("a generator that is seeded  SEEDED", "2 of 3 steps", "seeds.py:13"):
        assert text in shown.getvalue(), shown.getvalue()
assert not diagnose(evidence.without("seeds")).verdicts
(rule,) = (each for each in rules() if each.code == "SEEDED")
assert "seeds the generator" in rule.about

causes.ROOT, causes._rules = added, lambda room: [rule]
page = causes._page(rule)
for text in ("# A generator that is seeded", "2 of 3 steps", "def broken():", 'hl_lines="13"'):
    assert text in page, page
names = {each.code: each.name for each in rules()}
for language in ("doctor.md", "doctor.zh.md"):
    table = cause_tables.table((cause_tables.DOCS / language).read_text(), names)
    assert "| `SEEDED` | a generator that is seeded |" in table
"""


def test_a_signal_and_its_cause_need_no_registration(tmp_path) -> None:
    files = {"signals": SIGNAL, "rules": RULE, "programs": PROGRAM}
    for folder, text in files.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "seeds.py").write_text(text)
    path = [ROOT / "tests", ROOT / "website", *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "100"}
    command = [sys.executable, "-c", CHECK, str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, env=environment)
