"""What only a GPU can show: a step never waits for the device."""

import pytest
import torch
from torch import nn

from halfstep import Engine, recipes
from halfstep.engine.average import EMA

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)]
    return nn.Sequential(*layers).cuda()


@pytest.fixture
def refuse_waiting():
    before = torch.cuda.get_sync_debug_mode()
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("recipe", [name for name in recipes() if name not in ("half", "o3")])
def test_a_step_with_a_fused_optimizer_does_not_wait(recipe, refuse_waiting):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    images = torch.randn(16, 1, 8, 8, device="cuda")
    labels = torch.randint(0, 10, (16,), device="cuda")
    options = {"accumulate": 2, "clip_norm": 1.0, "scheduler": scheduler, "average": EMA(0.9)}
    with Engine(model, optimizer, recipe=recipe, **options) as engine:
        for micro_step in range(12):
            if micro_step == 4:
                refuse_waiting()
            with engine.autocast():
                loss = nn.functional.cross_entropy(engine.model(images).float(), labels)
            engine.backward(loss)
            engine.step()
        torch.cuda.set_sync_debug_mode("default")
        assert engine.steps == 6
        assert loss.isfinite()


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_is_skipped_whole(fused):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    with Engine(model, optimizer, recipe="fp16") as engine:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        for factor in (torch.inf, 1.0):
            with engine.autocast():
                outputs = engine.model(torch.randn(16, 1, 8, 8, device="cuda"))
                loss = outputs.float().square().mean() * factor
            engine.backward(loss)
            result = engine.step()
            if factor == torch.inf:
                after = model.state_dict()
                assert all(torch.equal(after[name], value) for name, value in before.items())
                assert result.skipped
        assert result.stepped
        assert all(value.isfinite().all() for value in model.state_dict().values())
