"""A watch that rests after few steps."""

from __future__ import annotations

from halfstep.doctor.watching import resting


def rest_soon(monkeypatch) -> list[bool]:
    """Let watches rest after two steps, and after one that follows a bad step.

    Returns:
        Of each step while a watch rested whether it was an ordinary one; filled while it runs.
    """
    monkeypatch.setattr(resting, "FIRST", 2)
    monkeypatch.setattr(resting, "AFTER", 1)
    monkeypatch.setattr(resting, "is_due", lambda step: False)
    passed, real = [], resting.Rest.passes

    def passes(self, *given):
        passed.append(real(self, *given))
        return passed[-1]

    monkeypatch.setattr(resting.Rest, "passes", passes)
    return passed
