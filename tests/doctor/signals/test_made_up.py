"""A new signal with its cause is three files: the signal, the rule, and the program."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import warm

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
import sys
import torch
from torch import nn
import halfstep.doctor.rules.updates
import halfstep.doctor.signals

halfstep.doctor.signals.__path__.append(sys.argv[1] + "/signals")
halfstep.doctor.rules.updates.__path__.append(sys.argv[1] + "/rules")

from halfstep.doctor import Watch, diagnose
from halfstep.doctor.record import from_json
from halfstep.doctor.rules import rules
from halfstep.doctor.signals.seeds import Seeds

seed = random.seed
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Watch() as watch:
    for _ in range(3):
        random.seed(0)
        optimizer.zero_grad()
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
assert random.seed == seed
evidence = watch.close()
assert "seeds" in evidence.signals and not watch.troubles
for each in (evidence, from_json(evidence.to_json())):
    (verdict,) = diagnose(each).verdicts
    assert (verdict.code, verdict.finding.facts) == ("SEEDED", ("2 of 3 steps",))
    assert verdict.finding.site is not None
    assert each.of(Seeds).rate != each.of(Seeds).rate  # NaN outlives JSON
assert not diagnose(evidence.without("seeds")).verdicts
assert any(rule.code == "SEEDED" and "seeds the generator" in rule.about for rule in rules())
"""


def program(folder: Path) -> None:
    """Be the program, in a process that has found no signals yet."""
    sys.argv[1:] = [str(folder)]
    runpy.run_path(str(folder / "program.py"), run_name="__main__")


def test_a_signal_and_its_cause_need_no_registration(tmp_path) -> None:
    for folder, text in (("signals", SIGNAL), ("rules", RULE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "seeds.py").write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    assert len([each for each in tmp_path.rglob("*.py") if Path(each).is_file()]) == 3
    ended = warm.Warm(program, tmp_path).wait(300)
    assert ended.code == 0, ended.err
