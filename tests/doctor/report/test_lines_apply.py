"""A printed change of lines applies to its program as it stands, and mends it.

The lines are applied as `benchmarks/doctor_ledgers.py` applies them: a deleted line, or one without
a sign, must stand at its place, and an added line belongs to the block of the line before it.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
from pathlib import Path

import pytest

from halfstep.doctor import Watch, diagnose
from halfstep.doctor.record import as_plain

ROOT = Path(__file__).parents[3]
START = """
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
torch.manual_seed(0)
DATA = [(torch.randn(4, 3), torch.randint(2, (4,))) for _ in range(4)]
loss_of = nn.CrossEntropyLoss()
seen, rates = [], []

def net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
"""


@pytest.fixture(scope="module")
def benchmark():
    file = ROOT / "benchmarks" / "doctor_ledgers.py"
    spec = importlib.util.spec_from_file_location("doctor_ledgers", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def diagnosed(path: Path):
    watch = Watch()
    with watch:
        before = runpy.run_path(str(path))
    assert not watch.troubles, watch.troubles
    verdicts = diagnose(watch.close()).verdicts
    assert verdicts, "nothing was found"
    return before, verdicts[0]


MODES = {
    "a function for an epoch": """
def train_epoch(model, loader, optimizer):
    for images, labels in loader:
        loss = loss_of(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(model[2].training)

@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    return sum(loss_of(net(images), labels) for images, labels in loader)

def main():
    classifier = net()
    optimizer = SGD(classifier.parameters(), lr=0.1)
    for epoch in range(4):
        train_epoch(classifier, DATA, optimizer)
        evaluate(classifier, DATA)

main()
""",
    "a trainer that evaluates between steps": """
class Trainer:
    def __init__(self):
        self.net = net()
        self.optimizer = SGD(self.net.parameters(), lr=0.1)

    def evaluate(self):
        self.net.eval()
        with torch.no_grad():
            for images, labels in DATA:
                loss_of(self.net(images), labels)

    def fit(self):
        step = 0
        while step < 16:
            for images, labels in DATA:
                loss = loss_of(
                    self.net(images),
                    labels,
                )
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                seen.append(self.net[2].training)
                step += 1
                if step % 3 == 0:
                    self.evaluate()

Trainer().fit()
""",
    "one loop, whose header has two lines": """
models = {"first": net()}
optimizer = SGD(models["first"].parameters(), lr=0.1)
for epoch in range(4):
    for number, (images, labels) in enumerate(
        DATA
    ):
        optimizer.zero_grad()
        loss_of(models["first"](images), labels).backward()
        optimizer.step()
        seen.append(models["first"][2].training)
    models["first"].eval()
    with torch.no_grad():
        models["first"](DATA[0][0])
""",
    "a model that each seed makes": """
for seed in range(2):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(12):
        images, labels = DATA[step % 4]
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        seen.append(model[2].training)
        if step % 4 == 1:
            model.eval()
            with torch.no_grad():
                model(images)
""",
    "a second phase alone": """
def phase(model, optimizer, *, trains):
    for epoch in range(3):
        if trains:
            model.train()
        for images, labels in DATA:
            optimizer.zero_grad()
            loss_of(model(images), labels).backward()
            optimizer.step()
            seen.append(model[2].training)

model = net()
optimizer = SGD(model.parameters(), lr=0.1)
phase(model, optimizer, trains=True)
model.eval()
with torch.no_grad():
    model(DATA[0][0])
for images, labels in 4 * DATA:
    optimizer.zero_grad()
    loss_of(model(images), labels).backward()
    optimizer.step()
    seen.append(model[2].training)
""",
    "a part in a list": """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = {"body": [net()]}
        self.last = nn.Linear(2, 2)

    def forward(self, images):
        return self.last(self.parts["body"][0](images))

pair = Pair()
body = pair.parts["body"][0]
optimizer = SGD([*pair.parameters(), *body.parameters()], lr=0.1)
for epoch in range(4):
    pair.train()
    for images, labels in DATA:
        optimizer.zero_grad()
        loss_of(pair(images), labels).backward()
        optimizer.step()
        seen.append(body[2].training)
    pair.eval(), body.eval()
    with torch.no_grad():
        pair(images)
""",
    "norms that are frozen once, in a list of layers": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)])
        self.norm = nn.BatchNorm1d(2)

    def forward(self, images):
        for each in self.layers:
            images = each(images)
        return self.norm(images)

class Task:
    def __init__(self):
        self.model = Net()
        norm = self.model.layers[1]
        norm.eval().requires_grad_(False)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = SGD(trained, lr=0.1)

    def fit(self):
        for epoch in range(4):
            self.model.train()
            for images, labels in DATA:
                self.optimizer.zero_grad()
                loss_of(self.model(images), labels).backward()
                self.optimizer.step()
                seen.append(not self.model.layers[1].training and self.model.norm.training)

Task().fit()
""",
}


@pytest.mark.parametrize("name", MODES)
def test_after_a_change_of_modes_every_step_is_in_the_right_one(name, tmp_path, benchmark) -> None:
    path = tmp_path / "train.py"
    path.write_text(START + MODES[name])
    before, verdict = diagnosed(path)
    assert not all(before["seen"])
    assert all(map(benchmark.is_code, verdict.finding.change)), verdict.finding.change
    path.write_text(benchmark.applied(path, json.loads(json.dumps(as_plain(verdict.finding)))))
    assert all(runpy.run_path(str(path))["seen"])


EVALUATIONS = {
    "in a function": """
def accuracy(net, loader):
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            seen.append(not net.training)
            right += (net(images).argmax(1) == labels).sum()
    return right

model = net()
optimizer = SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for images, labels in DATA:
        assert model.training
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    accuracy(model, DATA)
""",
    "in the loop, as its last statement": """
class Run:
    def __init__(self):
        self.model = net()

    def __call__(self):
        optimizer = SGD(self.model.parameters(), lr=0.1)
        for epoch in range(4):
            for images, labels in DATA:
                assert self.model.training
                optimizer.zero_grad()
                loss_of(self.model(images), labels).backward()
                optimizer.step()
            with torch.no_grad():
                for images, labels in DATA:
                    seen.append(not self.model.training)
                    self.model(images)

Run()()
""",
    "two in one loop": """
model = net()
opt = SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for images, labels in DATA:
        assert model.training
        opt.zero_grad()
        loss_of(model(images), labels).backward()
        opt.step()
    with torch.no_grad():
        for images, labels in DATA:
            seen.append(not model.training)
            model(images)
    with torch.no_grad():
        for images, labels in DATA:
            seen.append(not model.training)
            model(images)
""",
    "of a teacher": """
class Distillation:
    def __init__(self):
        self.teacher, self.student = net(), net()
        self.teacher.load_state_dict(net().state_dict())

    def step(self, images):
        with torch.no_grad():
            targets = self.teacher(images).softmax(1)
        seen.append(not self.teacher.training)
        return loss_of(self.student(images), targets)

task = Distillation()
optimizer = SGD(task.student.parameters(), lr=0.1)
for epoch in range(4):
    for images, _ in DATA:
        optimizer.zero_grad()
        task.step(images).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_after_a_change_of_an_evaluation_it_runs_in_evaluation_mode(
    name, tmp_path, benchmark
) -> None:
    path = tmp_path / "train.py"
    path.write_text(START + EVALUATIONS[name])
    before, verdict = diagnosed(path)
    assert not any(before["seen"])
    assert verdict.code == "EVALUATION_IN_TRAINING_MODE"
    assert all(map(benchmark.is_code, verdict.finding.change)), verdict.finding.change
    path.write_text(benchmark.applied(path, json.loads(json.dumps(as_plain(verdict.finding)))))
    # The other half of the check is `assert model.training` in the programs.
    assert all(runpy.run_path(str(path))["seen"])


RATES = {
    "a one-cycle of all steps that moves once an epoch": (
        """
def fit(epochs):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, epochs=epochs,
        steps_per_epoch=len(DATA))
    def train(optimizer):
        for images, labels in DATA:
            optimizer.zero_grad()
            loss_of(model(images), labels).backward()
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
    for epoch in range(epochs):
        train(optimizer)
        schedule.step()

fit(8)
""",
        lambda rates: max(rates) > 0.09 and rates[-1] < 0.01,
    ),
    "a one-cycle that no other function knows": (
        """
model = net()

def train(optimizer):
    for images, labels in DATA:
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])

def main(epochs):
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(DATA))
    for epoch in range(epochs):
        train(optimizer)
        schedule.step()

main(8)
""",
        lambda rates: max(rates) > 0.09 and rates[-1] < 0.01,
    ),
    "a cosine in epochs that moves with each batch": (
        """
model = net()
optimizer = SGD(model.parameters(), lr=0.1)
schedule = lr_scheduler.CosineAnnealingLR(
    optimizer,
    T_max=9,
)
for epoch in range(9):
    for images, labels in DATA:
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
""",
        lambda rates: rates == sorted(rates, reverse=True) and rates[-1] < 0.01,
    ),
    "an exponential decay for epochs that moves with each batch": (
        """
model = net()
optimizer = SGD(model.parameters(), lr=0.1)
schedule = lr_scheduler.ExponentialLR(optimizer, 0.2)
images, labels = torch.randn(8, 3), torch.tensor([0, 1] * 4)
for epoch in range(6):
    for number in range(10):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    last = epoch
""",
        lambda rates: len(set(rates)) == 6,
    ),
    "a linear decay that moves with each micro-batch": (
        """
class Run:
    def __init__(self):
        self.model = net()
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.schedule = lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, total_iters=24)

    def fit(self):
        for step in range(48):
            images, labels = DATA[step % 4]
            loss_of(self.model(images), labels).backward()
            self.schedule.step()
            if step % 2:
                self.optimizer.step()
                rates.append(self.optimizer.param_groups[0]["lr"])
                self.optimizer.zero_grad()

Run().fit()
""",
        lambda rates: 0.04 < rates[12] < 0.06,
    ),
    "an optimizer that is made again": (
        """
class Run:
    def __init__(self, epochs):
        self.model, self.epochs = net(), epochs
        self.adam = torch.optim.Adam(self.model[3].parameters(), lr=0.01)
        self.decay = lr_scheduler.CosineAnnealingLR(self.adam, epochs)

    def unfreeze(self):
        self.adam = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def fit(self):
        for epoch in range(self.epochs):
            if epoch == 2:
                self.unfreeze()
            for images, labels in DATA:
                self.adam.zero_grad()
                loss_of(self.model(images), labels).backward()
                self.adam.step()
                rates.append(self.adam.param_groups[0]["lr"])
            self.decay.step()

Run(10).fit()
""",
        lambda rates: rates[-1] < 0.001,
    ),
    "groups that a loaded state slows down": (
        """
import copy
model = net()
def make():
    slow, fast = model[:2].parameters(), model[3].parameters()
    return SGD([{"params": slow, "lr": 0.3}, {"params": fast}], lr=0.5)
first = make()
decay = lr_scheduler.CosineAnnealingLR(first, 8)
for step in range(7):
    first.zero_grad()
    loss_of(model(DATA[0][0]), DATA[0][1]).backward()
    first.step()
    decay.step()
saved = copy.deepcopy(first.state_dict())
second = make()
second.load_state_dict(saved)
for step in range(24):
    second.zero_grad()
    loss_of(model(DATA[0][0]), DATA[0][1]).backward()
    second.step()
    rates.append([each["lr"] for each in second.param_groups])
""",
        lambda rates: rates[0] == [0.3, 0.5],
    ),
    "a function that returns a rate": (
        """
LR = 0.05
model = net()
tuned = torch.optim.AdamW(
    model.parameters(), lr=LR, weight_decay=0.0
)
decay = lr_scheduler.LambdaLR(tuned, lambda step: LR * 0.9**step)
for step in range(24):
    tuned.zero_grad()
    loss_of(model(DATA[0][0]), DATA[0][1]).backward()
    tuned.step()
    rates.append(tuned.param_groups[0]["lr"])
    decay.step()
""",
        lambda rates: max(rates) == 0.05,
    ),
}


@pytest.mark.parametrize("name", RATES)
def test_after_a_change_of_a_schedule_the_steps_have_its_rates(name, tmp_path, benchmark) -> None:
    program, is_right = RATES[name]
    path = tmp_path / "train.py"
    path.write_text(START + program)
    before, verdict = diagnosed(path)
    assert not is_right(before["rates"])
    assert all(map(benchmark.is_code, verdict.finding.change)), verdict.finding.change
    path.write_text(benchmark.applied(path, json.loads(json.dumps(as_plain(verdict.finding)))))
    assert is_right(runpy.run_path(str(path))["rates"])


GRADIENTS = {
    "cleared between backward and step": """
class Run:
    def __init__(self):
        self.model = net()
        self.opt = SGD(self.model.parameters(), lr=0.1)

    def step(self, images, labels):
        loss = loss_of(self.model(images), labels)
        loss.backward()
        self.opt.zero_grad()
        before = self.model[0].weight.detach().clone()
        self.opt.step()
        seen.append(not torch.equal(before, self.model[0].weight))

run = Run()
for epoch in range(4):
    for images, labels in DATA:
        run.step(images, labels)
""",
    "kept after a step that is left out": """
def train(model, optimizer):
    for epoch in range(8):
        for number, (images, labels) in enumerate(DATA):
            images = images.clone()
            if epoch == 0 and number == 2:
                images[0, 0] = float("inf")
            loss = loss_of(model(images), labels)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not torch.isfinite(norm):
                continue
            optimizer.step()
            optimizer.zero_grad()
            seen.append(epoch)
    seen.append(len(seen) > 20)

classifier = nn.Linear(3, 2)
train(classifier, SGD(classifier.parameters(), lr=0.1))
""",
    "weights that each epoch sets back": """
model = net()
start = {name: each.clone() for name, each in model.state_dict().items()}
optimizer = SGD(model.parameters(), lr=0.1)
for epoch in range(6):
    model.load_state_dict(start)
    seen.append(epoch == 0 or not torch.equal(model[0].weight, start["0.weight"]))
    for images, labels in DATA:
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
""",
    "clipped after the step": """
def fit(model, opt):
    for epoch in range(4):
        for images, labels in DATA:
            opt.zero_grad()
            loss_of(model(images), labels).backward()
            before = model[0].weight.detach().clone()
            opt.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            seen.append((before - model[0].weight).norm().item() < 1e-2)

first = net()
fit(first, SGD(first.parameters(), lr=1.0))
""",
    "groups with one rate": """
model = net()
slow, fast = model[:3].parameters(), model[3].parameters()
opt = SGD([{"params": slow, "lr": 0.001}, {"params": fast, "lr": 0.1}])
schedule = lr_scheduler.OneCycleLR(
    opt, max_lr=0.1,
    total_steps=24)
for step in range(24):
    images, labels = DATA[step % 4]
    opt.zero_grad()
    loss_of(model(images), labels).backward()
    opt.step()
    seen.append(opt.param_groups[0]["lr"] < opt.param_groups[1]["lr"])
    schedule.step()
""",
    "not cleared": """
class Loop:
    def __init__(self):
        self.net = net()
        self.sgd = SGD(
            self.net.parameters(),
            lr=0.1,
        )

    def run(self):
        for images, labels in DATA * 3:
            seen.append(self.net[0].weight.grad is None or not self.net[0].weight.grad.any())
            loss_of(self.net(images), labels).backward()
            self.sgd.step()

Loop().run()
""",
    "cleared before each backward": """
model = net()
optimizer = SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for number, (images, labels) in enumerate(DATA):
        optimizer.zero_grad()
        if number % 2:
            seen.append(model[0].weight.grad is not None)
        (loss_of(model(images), labels) / 2).backward()
        if number % 2:
            optimizer.step()
""",
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_after_a_change_of_the_loop_every_step_is_right(name, tmp_path, benchmark) -> None:
    path = tmp_path / "train.py"
    path.write_text(START + GRADIENTS[name])
    before, verdict = diagnosed(path)
    assert not before["seen"][-1]
    assert all(map(benchmark.is_code, verdict.finding.change)), verdict.finding.change
    path.write_text(benchmark.applied(path, json.loads(json.dumps(as_plain(verdict.finding)))))
    assert runpy.run_path(str(path))["seen"][-1]
