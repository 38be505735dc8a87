"""A model that is validated in bf16, by a cast in place."""

import copy
import io

import torch
from torch import nn

from doctor.loops import batches

CODE = "WEIGHTS_ROUNDED_IN_PLACE"


def model_and_optimizer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(validate) -> None:
    model, optimizer = model_and_optimizer()
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        with torch.no_grad():
            validate(model, images)


def in_place(model, images) -> None:
    model.bfloat16()
    model(images.bfloat16())
    model.float()


def broken() -> None:
    train(in_place)


def mended() -> None:
    train(lambda model, images: copy.deepcopy(model).bfloat16()(images.bfloat16()))


def by_to(model, images) -> None:
    model.to(torch.float16)
    model.to("cpu", torch.float32)


def harmless_by_to() -> None:
    train(by_to)


def averaged(*, copied: bool) -> None:
    model, optimizer = model_and_optimizer()
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.5)
            in_place(copy.deepcopy(average) if copied else average, images)


def broken_average() -> None:
    averaged(copied=False)


def healthy_copy_of_an_average() -> None:
    averaged(copied=True)


def healthy_before_the_first_step() -> None:
    model, optimizer = model_and_optimizer()
    model.half().float()
    for images, labels in batches(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_after_the_last_step() -> None:
    model, optimizer = model_and_optimizer()
    for images, labels in batches(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    in_place(model, images)


def train_and_save(save) -> None:
    model, optimizer = model_and_optimizer()
    for number, (images, labels) in enumerate(batches(6)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if number == 2:
            save(model)


def broken_by_a_checkpoint_in_half() -> None:
    train_and_save(lambda model: torch.save(model.half().state_dict(), io.BytesIO()))


def healthy_copy_in_half() -> None:
    def save(model) -> None:
        torch.save(copy.deepcopy(model).half().state_dict(), io.BytesIO())

    train_and_save(save)


def distil(retrained: bool) -> None:
    """Train a teacher, cast it, and train a student, possibly with the teacher."""
    teacher, optimizer = model_and_optimizer()
    for images, labels in batches(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(teacher(images), labels).backward()
        optimizer.step()
    teacher.bfloat16()
    student, _ = model_and_optimizer()
    trained = [*student.parameters(), *(teacher.parameters() if retrained else ())]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for images, _ in batches(3):
        optimizer.zero_grad()
        wanted = teacher(images.bfloat16()).float()
        wanted = wanted if retrained else wanted.detach()
        nn.functional.mse_loss(student(images), wanted).backward()
        optimizer.step()


def broken_by_another_optimizer() -> None:
    distil(retrained=True)


def healthy_teacher_in_half() -> None:
    distil(retrained=False)


def exchange(dtype: torch.dtype) -> None:
    """Send the weights to a worker that trains them, and take them back, in each step."""
    worker, optimizer = model_and_optimizer()
    weights = {name: each.clone() for name, each in worker.state_dict().items()}
    for images, labels in batches(6):
        worker.load_state_dict({name: each.to(dtype) for name, each in weights.items()})
        optimizer.zero_grad()
        nn.functional.cross_entropy(worker(images), labels).backward()
        optimizer.step()
        weights = {name: each.clone() for name, each in worker.state_dict().items()}


def broken_by_weights_sent_in_half() -> None:
    exchange(torch.bfloat16)


def healthy_weights_sent_in_fp32() -> None:
    exchange(torch.float32)


def healthy_same_start_in_half() -> None:
    """Train on three folds, each time from the same weights in bf16."""
    start = {name: each.bfloat16() for name, each in model_and_optimizer()[0].state_dict().items()}
    model, _ = model_and_optimizer()
    for fold in range(3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.load_state_dict(start)
        for images, labels in batches(3, seed=fold):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


def train_then(write, model: nn.Module | None = None) -> None:
    """Train, and write to the weights after each step."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    for images, labels in batches(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        with torch.no_grad():
            for each in model.parameters():
                write(each)


def to_levels(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.abs().max() / 7
    return (weight / scale).round() * scale


def broken_by_levels_of_four_bits() -> None:
    train_then(lambda weight: weight.copy_(to_levels(weight)))


def healthy_levels_of_the_forward_pass() -> None:
    class Rounded(nn.Linear):
        def forward(self, inputs):
            weight = self.weight + (to_levels(self.weight) - self.weight).detach()
            return nn.functional.linear(inputs, weight, self.bias)

    train_then(lambda _: None, nn.Sequential(Rounded(6, 32), nn.ReLU(), Rounded(32, 3)))


def healthy_weights_of_a_pruned_model() -> None:
    train_then(lambda weight: weight.mul_(torch.arange(weight.numel()).view_as(weight) % 8 == 0))


class SignDescent(torch.optim.Optimizer):
    """Moves each weight by steps of one size."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                each.sub_(each.grad.sign(), alpha=group["lr"])


def healthy_steps_of_one_size() -> None:
    torch.manual_seed(0)
    size, model = 2**-6, nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 3))
    with torch.no_grad():
        for each in model.parameters():
            each.copy_((each / size).round() * size)
    optimizer = SignDescent(model.parameters(), {"lr": size})
    for images, labels in batches(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_clamped_weights() -> None:
    train_then(lambda weight: weight.clamp_(-0.05, 0.05))
