"""An exponential moving average of the weights, kept in bf16."""

import copy

import torch
from torch import nn

from doctor.loops import batches

CODE = "AVERAGE_IN_HALF"
STEPS = 12


def train(make, update, *, dtype=torch.float32) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    average = make(model)
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(dtype)), labels).backward()
        optimizer.step()
        update(average, model)


@torch.no_grad()
def _in_place(average, model) -> None:
    for mine, its in zip(average.parameters(), model.parameters(), strict=True):
        mine.mul_(0.999).add_(its.to(mine.dtype), alpha=0.001)


def broken() -> None:
    train(lambda model: copy.deepcopy(model).bfloat16(), _in_place)


def mended() -> None:
    train(copy.deepcopy, _in_place)


def broken_beside_the_model_that_it_follows() -> None:
    torch.manual_seed(0)
    both = nn.ModuleDict({"trained": nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))})
    both["average"] = copy.deepcopy(both["trained"]).half()
    optimizer = torch.optim.Adam(both["trained"].parameters(), lr=0.02)
    both.forward = both["trained"].forward
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(both(images), labels).backward()
        optimizer.step()
        _in_place(both["average"], both["trained"])


def broken_dictionary_in_fp16() -> None:
    def update(average, model) -> None:
        for name, each in model.state_dict().items():
            average[name] = 0.9995 * average[name] + 0.0005 * each.half()

    train(lambda model: {k: v.half() for k, v in model.state_dict().items()}, update)


def broken_by_foreach() -> None:
    def update(average, model) -> None:
        torch._foreach_lerp_(
            average, [each.detach().bfloat16() for each in model.parameters()], 1e-3
        )

    train(lambda model: [each.detach().bfloat16() for each in model.parameters()], update)


class Shadow(nn.Module):
    """An average in buffers, which is called with the model.

    Args:
        model: The model.
        dtype: Format of the average.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        for number, each in enumerate(model.parameters()):
            self.register_buffer(f"shadow{number}", each.detach().to(dtype, copy=True))

    @torch.no_grad()
    def forward(self, model: nn.Module) -> None:
        for mine, its in zip(self.buffers(), model.parameters(), strict=True):
            mine.sub_(0.001 * (mine - its))


def broken_in_a_module_that_is_called_with_the_model() -> None:
    train(lambda model: Shadow(model, torch.bfloat16), lambda mean, model: mean(model))


def healthy_in_a_module_that_is_called_with_the_model() -> None:
    train(lambda model: Shadow(model, torch.float32), lambda mean, model: mean(model))


def healthy_of_a_bf16_model_in_fp32() -> None:
    train(lambda model: copy.deepcopy(model).float(), _in_place, dtype=torch.bfloat16)


def healthy_half_copies_for_inference() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for mine, its in zip(average.parameters(), model.parameters(), strict=True):
            mine.copy_(its)

    train(lambda model: copy.deepcopy(model).bfloat16(), update)


def healthy_fast_average() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for mine, its in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(its.to(mine.dtype), 0.5)

    train(lambda model: copy.deepcopy(model).bfloat16(), update)


def taught_by(dtype) -> None:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    teacher = copy.deepcopy(student).to(dtype).requires_grad_(False)  # noqa: FBT003  # torch's own
    optimizer = torch.optim.Adam(student.parameters(), lr=0.02)
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        with torch.no_grad():
            taught = teacher(images.to(dtype)).float()
        outputs = student(images)
        loss = nn.functional.cross_entropy(outputs, labels)
        (loss + (outputs - taught).pow(2).mean()).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.data = mine.data * 0.9996 + its.data.to(dtype) * 0.0004


def broken_teacher_that_the_loop_calls() -> None:
    taught_by(torch.bfloat16)


def healthy_teacher_that_the_loop_calls() -> None:
    taught_by(torch.float32)
