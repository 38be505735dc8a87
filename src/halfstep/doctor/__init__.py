"""Finds out why mixed-precision training failed, in any PyTorch program.

A watch observes a training loop and fills one record of evidence. The rules read the record and
report causes. There are three entry points: `halfstep doctor script.py`, `halfstep.watch(model,
optimizer)` in a user's own loop, and the trainer, which watches its runs.
"""

from halfstep.doctor.record import Evidence
from halfstep.doctor.report.diagnose import diagnose
from halfstep.doctor.session import Session, watch
from halfstep.doctor.verdict import Diagnosis, Finding, Rule, Verdict
from halfstep.doctor.watching.watch import Watch

__all__ = [
    "Diagnosis",
    "Evidence",
    "Finding",
    "Rule",
    "Session",
    "Verdict",
    "Watch",
    "diagnose",
    "watch",
]
