"""The loop keeps fp32 copies of a bf16 model's parameters, and updates only the copies."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "MASTER_WEIGHTS_NOT_COPIED"


def train(copy, *, scaled: bool = False, rate: float = 0.01) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).bfloat16()
    masters = [each.detach().clone().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
    for images, labels in batches(4):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(images.bfloat16()).float(), labels)
        scaler.scale(loss).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
        scaler.step(optimizer)
        scaler.update()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            copy(parameter, master)


def in_place(parameter: nn.Parameter, master: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(master)


def broken() -> None:
    train(lambda parameter, master: None)


def mended() -> None:
    train(in_place)


def broken_under_a_scaler() -> None:
    train(lambda parameter, master: None, scaled=True)


def healthy_with_other_data() -> None:
    def replaced(parameter, master):
        parameter.data = master.detach().to(parameter.dtype)

    train(replaced)


def healthy_with_a_frozen_part_and_a_temperature() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3, bias=False).bfloat16()
    temperature = torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD([temperature, *model.parameters()], lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        outputs = model(images.bfloat16()).float() / temperature
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


def healthy_with_updates_that_bf16_rounds_away() -> None:
    train(in_place, rate=1e-9)


def healthy_with_a_new_copy_of_the_model_in_each_step() -> None:
    torch.manual_seed(0)
    masters = [torch.randn(3, 6).requires_grad_()]
    optimizer = torch.optim.SGD(masters, lr=0.01)
    first = nn.Linear(6, 3, bias=False).bfloat16()
    for number, (images, labels) in enumerate(batches(4)):
        model = nn.Linear(6, 3, bias=False).bfloat16() if number else first
        if number:
            in_place(model.weight, masters[0])
        loss = nn.functional.cross_entropy(model(images.bfloat16()).float(), labels)
        loss.backward()
        masters[0].grad = model.weight.grad.float()
        optimizer.step()
