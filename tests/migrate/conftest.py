"""Programs as they were and migrated, run in this process."""

import functools
import random
from pathlib import Path

import pytest
import torch

import halfstep.migrate as package
from halfstep.apex import amp

FIXTURES = Path(__file__).parent / "fixtures"
migrate = functools.cache(package.migrate)
"""Several tests look at the same program, migrated."""


def source(name):
    return (FIXTURES / f"{name}.py").read_text()


@pytest.fixture
def run():
    """Run a program and return its names; engines of earlier programs are closed."""
    started = []

    def execute(text, name="program"):
        random.seed(0)
        torch.manual_seed(0)
        names = {"__name__": "__main__"}
        started.append(names)
        exec(compile(text, name, "exec"), names)
        # What O1 patched would cast for the next program too, whether it has autocast or not.
        if hasattr(amp._amp_state, "handle"):
            amp._amp_state.handle._deactivate()
        return names

    yield execute
    for names in started:
        for holder in (names, *(vars(each) for each in names.values() if hasattr(each, "engine"))):
            if hasattr(holder.get("engine"), "optimizers"):
                holder["engine"].close()
