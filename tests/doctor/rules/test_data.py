"""What rules about data suggest is changed code of the program, at the line of the mistake."""

from __future__ import annotations

import runpy

import pytest

from halfstep.doctor import Watch, diagnose
from halfstep.doctor.record import Numbers, StepNumbers, recorded
from halfstep.doctor.record.influence import Influence, Lost, Place
from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.signals.data.classes import ClassOrder, SortedClasses

START = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.manual_seed(0)
inputs = torch.randn(48, 6)
targets = (inputs @ torch.randn(6, 3)).argmax(1)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

def step(batch, wanted):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch), wanted).backward()
    optimizer.step()
"""
PROGRAMS = {
    "ORDER_REPEATS": """
data = TensorDataset(inputs, targets)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, 1, 0))
for epoch in range(3):
    for batch, wanted in loader:
        step(batch, wanted)
""",
    "RANDOM_NUMBERS_REPEAT": """
def set_seed(seed):
    torch.manual_seed(seed)

for epoch in range(4):
    set_seed(42)
    for start in range(0, 48, 8):
        step(inputs[start : start + 8], targets[start : start + 8])
""",
    "CLASSES_IN_TURN": """
order = targets.argsort()
loader = DataLoader(TensorDataset(inputs[order], targets[order]), batch_size=4)
for epoch in range(6):
    for batch, wanted in loader:
        step(batch, wanted)
""",
    "DATA_CHANGED_IN_PLACE": """
for epoch in range(4):
    for start in range(0, 48, 8):
        batch = inputs[start : start + 8]
        batch -= inputs.mean(0)
        batch /= inputs.std(0) + 0.5
        step(batch, targets[start : start + 8])
""",
    "LOADER_WITHOUT_BATCHES": """
loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, drop_last=True)
for batch, wanted in loader:
    step(batch, wanted)
""",
    "LABELS_OF_ANOTHER_PASS": """
for start in range(0, 48, 8):
    step(inputs[start : start + 8], targets[start : start + 8])
model.eval()
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
with torch.no_grad():
    outputs = torch.cat([model(batch) for batch, _ in loader])
labels = torch.cat([wanted for _, wanted in loader])
""",
}
CHANGES = {
    "ORDER_REPEATS": (
        "- for batch, wanted in loader:",
        "+ loader.sampler.set_epoch(epoch)",
        "+ for batch, wanted in loader:",
    ),
    "RANDOM_NUMBERS_REPEAT": ("- set_seed(42)",),
    "CLASSES_IN_TURN": (
        "@ train.py:17",
        "- loader = DataLoader(TensorDataset(inputs[order], targets[order]), batch_size=4)",
        (
            "+ loader = DataLoader(TensorDataset(inputs[order], targets[order]), batch_size=4, "
            "shuffle=True)"
        ),
    ),
    "DATA_CHANGED_IN_PLACE": ("- batch -= inputs.mean(0)", "+ batch = batch - inputs.mean(0)"),
    "LOADER_WITHOUT_BATCHES": (
        "- loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, drop_last=True)",
        "+ loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, drop_last=False)",
    ),
    "LABELS_OF_ANOTHER_PASS": (
        "@ train.py:19",
        "- loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)",
        "+ loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=False)",
    ),
}


def diagnosed(path):
    with Watch() as watch:
        runpy.run_path(str(path))
    evidence = watch.close()
    assert not watch.troubles, watch.troubles
    return diagnose(evidence).verdicts


@pytest.mark.parametrize("code", PROGRAMS)
def test_the_change_is_one_of_lines(code, tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(START + PROGRAMS[code])
    (verdict,) = diagnosed(path)
    assert verdict.code == code
    assert verdict.finding.change == CHANGES[code]


@pytest.mark.parametrize("code", [each for each in PROGRAMS if each != "ORDER_REPEATS"])
def test_the_change_mends(code, tmp_path) -> None:
    path = tmp_path / "train.py"
    text = START + PROGRAMS[code]
    deleted = [each[2:] for each in CHANGES[code] if each.startswith("- ")]
    added = [each[2:] for each in CHANGES[code] if each.startswith("+ ")]
    path.write_text(text.replace(deleted[0], added[0] if added else "pass"))
    assert diagnosed(path) == ()


@pytest.mark.parametrize(
    ("losses", "is_harmful"),
    [
        ((2.6, 2.1), True),  # worse than a guess, and better within each class
        ((2.4, 2.4), False),  # of another size: nothing is unlearned
        ((1.0, 0.8), False),
        ((1.5, 0.5), True),
    ],
)
def test_few_steps_of_each_class_show_what_their_order_costs(losses, is_harmful) -> None:
    count = 24
    order = SortedClasses(
        classes=6,
        pure=0.8,
        chance=0.17,
        steps=tuple((n, n % 2 == 0) for n in range(count)),
        optimizers=1,
        length=2.0,
        same_order=True,
        model_line=None,
        site=None,
    )
    steps = tuple(
        StepNumbers(n, 0, losses[n % 2], 1.0, None, skipped=False, learning_rate=0.1)
        for n in range(count)
    )
    evidence = recorded(
        classes=ClassOrder((order,)),
        numbers=Numbers(steps),
        passes=PassLedger(),
        influence=Influence(lost=Lost("saturated", Place("relu", "", "", (), None))),
    )
    found = diagnose(evidence)
    assert [each.code for each in found.verdicts] == (
        ["CLASSES_IN_TURN"] if is_harmful else ["INPUT_LOST"]
    )
    assert found.consequences == (("INPUT_LOST",) if is_harmful else ())
