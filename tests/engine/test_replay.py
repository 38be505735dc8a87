"""A step whose operators are replayed is the step that the engine takes, bit for bit.

`Tape` stands for a CUDA graph. What `refusals` names cannot be recorded, and all else can.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from engine.tape import HostReadError, Tape
from halfstep import EMA, Engine, recipe
from halfstep.engine.plan.replay import refusals
from halfstep.optim import in_one_kernel
from halfstep.optim.bf16 import AdamBf16, SGDBf16
from halfstep.optim.eight_bit import Adam8

RECIPES = [
    "fp32", "tf32", "fp16", "bf16", "half-bn32", "o1", "o2", "o3", "bf16-sr", "bf16-kahan", "act4",
    "fp8", "mxfp8", "nvfp4",
]  # fmt: skip
STEPS, WARM = 12, 3
OVERFLOWS = {0, 6, 7}
NARROW = (AdamBf16, SGDBf16, Adam8)
"""Optimizers with narrow moments, which one kernel steps."""
GROWS = {"init": 256.0, "growth_interval": 2}


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 64, 32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip


class Run:
    """An engine over its own model, fed from the same place in every step."""

    def __init__(self, name, kind, *, fused, accumulate=1, lr=0.05, **settings):
        self.model = net()
        momentum = {"momentum": 0.9} if kind is SGD else {}
        own = {} if kind in NARROW else {"fused": True} if fused else {"foreach": True}
        self.optimizer = kind(self.model.parameters(), lr=lr, **momentum, **own)
        chosen = {"base": name, "loss_scale": GROWS} if recipe(name).scaling else name
        self.engine = Engine(
            self.model, self.optimizer, recipe=chosen, clip_norm=1.0, average=EMA(0.9),
            accumulate=accumulate, **settings,
        )  # fmt: skip
        self.skips = settings.get("nonfinite") != "apply"
        self.images, self.labels = torch.zeros(4, 2, 8, 8), torch.zeros(4, dtype=torch.int64)

    def feed(self, micro_step, *, overflows):
        source = torch.Generator().manual_seed(micro_step)
        self.images.copy_(torch.randn(self.images.shape, generator=source))
        self.labels.copy_(torch.randint(4, (4,), generator=source))
        if overflows:
            self.images[0, 0, 0, 0] = torch.inf

    def micro_step(self):
        with self.engine.autocast():
            loss = cross_entropy(self.engine.model(self.images).float(), self.labels)
        self.engine.backward(loss)
        self.engine.step()

    def numbers(self):
        state = self.engine.averaged_state_dict()
        tensors = {f"averaged {name}": value for name, value in state.items()}
        tensors |= dict(self.model.state_dict())
        for index, entry in enumerate(self.optimizer.state.values()):
            tensors |= {f"state {index} {name}": value for name, value in entry.items()}
        for scaler in self.engine.loss_scales.values():
            tensors["scale"] = scaler.scale
        if self.engine.lost_updates is not None:
            tensors["lost"] = torch.tensor(self.engine.lost_updates)
        (group,) = self.optimizer.state_dict()["param_groups"]
        tensors["draws"] = torch.tensor(group.get("draws", 0))
        return {name: value.clone() for name, value in tensors.items() if torch.is_tensor(value)}


def assert_replayed(eager, replayed, *, accumulate=1, change=lambda _run, _step: None):
    """Take the same steps twice: eagerly, and from tapes recorded in the step after `WARM`."""
    tapes, scales = [], set()
    for step in range(STEPS):
        for run in (eager, replayed):
            change(run, step)
        for micro in range(accumulate):
            for run in (eager, replayed):
                overflows = step in OVERFLOWS and not micro and run.skips
                run.feed(step * accumulate + micro, overflows=overflows)
            eager.micro_step()
            if step < WARM:
                replayed.micro_step()
            elif step == WARM:
                replayed.engine.flush()  # it belongs to no step
                tapes.append(Tape(replayed.micro_step))
            else:
                tapes[micro].replay()
        expected, found = eager.numbers(), replayed.numbers()
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), (step, name)
        assert all(value.isfinite().all() for value in expected.values())
        scales.add(float(expected.get("scale", 1)))
    return scales


def ways():
    for name in RECIPES:
        for kind in (SGD, AdamW):
            for fused in (True, False):
                label = f"{name}-{kind.__name__}-{'fused' if fused else 'foreach'}"
                yield pytest.param(name, kind, fused, id=label)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind", "fused"), [*ways()])
def test_replayed_steps_are_the_engines_or_refused(name, kind, fused):
    scaled = recipe(name).scaling is not None
    by_device = fused and name not in ("bf16-sr", "bf16-kahan")
    settings = {} if scaled or by_device else {"nonfinite": "apply"}
    eager, replayed = (Run(name, kind, fused=fused, **settings) for _ in range(2))
    reasons = refusals(replayed.engine._assembly, replayed.engine._assembly.windows)
    assert bool(reasons) == (not fused and (kind is AdamW or scaled))
    if reasons:
        assert all("fused=True" in reason for reason in reasons)
        replayed.feed(0, overflows=False)
        with pytest.raises(HostReadError):
            Tape(replayed.micro_step)
    else:
        scales = assert_replayed(eager, replayed)
        assert not scaled or (min(scales) < 256 and max(scales) > 256)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["fp16", "o2", "bf16", "act4"])
def test_each_kind_of_micro_step_has_its_own_tape(name):
    eager, replayed = (Run(name, SGD, fused=True, accumulate=2) for _ in range(2))
    assert_replayed(eager, replayed, accumulate=2)


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_learning_rate_in_a_tensor_moves_in_a_replay(kind):
    def change(run, step):
        run.optimizer.param_groups[0]["lr"].fill_(0.05 / (1 + step))

    runs = [Run("fp16", kind, fused=True, lr=torch.tensor(0.05)) for _ in range(2)]
    assert_replayed(*runs, change=change)


def test_activations_draw_new_numbers_in_each_replay():
    run = Run("act4", SGD, fused=True)
    for step in range(2):
        run.feed(step, overflows=False)
        run.micro_step()
    run.engine.flush()
    tape = Tape(run.micro_step)
    packed = [call[3][0] for call in tape._calls if "halfstep.pack" in str(call[0])]
    first = [codes.clone() for codes in packed]
    assert first
    with torch.no_grad():  # the same activations again
        for param in run.model.parameters():
            param.copy_(param)
    tape.replay()
    assert all((codes != before).any() for codes, before in zip(packed, first, strict=True))


@pytest.mark.parametrize("name", ["bf16-sr", "bf16-kahan"])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_kernel_skips_rounded_updates_on_the_device(monkeypatch, name, kind):
    """As on a GPU: the step of all bf16 parameters is one operator, which reads `found_inf`."""
    monkeypatch.setattr(in_one_kernel, "DEVICES", {"cpu"})
    eager, replayed = (Run(name, kind, fused=True, lr=torch.tensor(0.05)) for _ in range(2))
    assert refusals(replayed.engine._assembly, replayed.engine._assembly.windows) == []
    assert_replayed(eager, replayed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bf16-sr", AdamBf16), ("bf16-kahan", AdamBf16), ("bf16-sr", SGDBf16),
        ("bf16-sr", Adam8), ("bf16-true", Adam8), ("fp16", Adam8),
    ],
    ids=str,
)  # fmt: skip
def test_narrow_moments_and_their_random_numbers_move_in_a_replay(monkeypatch, name, kind):
    """And so do the counts of updates that round to nothing, and of steps that drew numbers."""
    monkeypatch.setattr(in_one_kernel, "DEVICES", {"cpu"})
    eager, replayed = (Run(name, kind, fused=True, lr=0.003) for _ in range(2))
    assert refusals(replayed.engine._assembly, replayed.engine._assembly.windows) == []
    assert_replayed(eager, replayed)
    assert (eager.engine.lost_updates is not None) == name.startswith("bf16-")
    assert eager.engine.lost_updates or not name.startswith("bf16-")


def test_moments_in_bf16_of_a_host_that_draws_their_random_numbers_are_refused():
    run = Run("bf16", AdamBf16, fused=True, nonfinite="apply")
    (reason,) = refusals(run.engine._assembly, run.engine._assembly.windows)
    assert reason.startswith("AdamBf16 is not known to change its state in place")
