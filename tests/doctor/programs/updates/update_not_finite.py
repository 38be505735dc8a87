"""A schedule divides by the number of steps that are left, and the last learning rate is inf."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "UPDATE_NOT_FINITE"


def train(last: float) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    rates = [0.01, 0.01, 0.01, last, 0.01, 0.01]
    for rate, (images, labels) in zip(rates, batches(6), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(float("inf"))


def mended() -> None:
    train(0.02)


def train_with_eps(make) -> None:
    """Train with an optimizer; the dead units have gradients of exactly 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(model[0].bias.data[1:], -30.0)
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_an_eps_of_zero() -> None:
    train_with_eps(lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=0.0))


class LayerRates(torch.optim.Optimizer):
    """Scales the gradient of each layer by the ratio of two norms, of which one may be 0."""

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            ratio = parameter.norm() / parameter.grad.norm()
            parameter.sub_(0.01 * ratio * parameter.grad)


def broken_by_the_first_update_before_an_evaluation() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(model[0].bias.data, -30.0)
    optimizer = LayerRates(model.parameters(), {})
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(images)
        model.train()


def healthy_with_dead_units() -> None:
    train_with_eps(lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=1e-8))


def broken_by_an_eps_that_is_the_sixth_argument() -> None:
    def make(parameters):
        return torch.optim.Adagrad(parameters, 1e-2, 0, 0, 0, 0)

    train_with_eps(make)


class ByHand(torch.optim.Optimizer):
    """An Adam without momentum, whose epsilon is zero in fp16."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                square = self.state[each].setdefault("square", torch.zeros_like(each))
                square.mul_(0.999).addcmul_(each.grad, each.grad, value=0.001)
                each.addcdiv_(each.grad, square.sqrt().add_(group["epsilon"]), value=-1e-3)


def train_by_hand(eps: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).half()
    optimizer = ByHand(model.parameters(), {"epsilon": eps})
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.half() * 1e-2).float(), labels).backward()
        optimizer.step()


def broken_by_an_update_in_fp16() -> None:
    train_by_hand(1e-8)


def healthy_update_in_fp16() -> None:
    train_by_hand(1e-3)


def broken_by_the_optimizer_of_another_model() -> None:
    torch.manual_seed(0)
    maker, critic = nn.Linear(4, 6), nn.Linear(6, 1)
    first = torch.optim.SGD(maker.parameters(), lr=0.01)
    second = torch.optim.Adam(critic.parameters(), lr=0.01)
    for number, (images, _) in enumerate(batches(6)):
        second.param_groups[0]["lr"] = float("inf") if number == 3 else 0.01
        made = maker(images[:, :4])
        second.zero_grad()
        nn.functional.softplus(critic(made.detach()) - critic(images)).mean().backward()
        second.step()
        first.zero_grad()
        nn.functional.softplus(-critic(made)).mean().backward()
        first.step()


def plain_train(
    model: nn.Module, optimizer: torch.optim.Optimizer, after, size: float = 1.0
) -> None:
    """Train without half precision, and call a function after each step."""
    for number, (images, labels) in enumerate(batches(6)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images * size), labels).backward()
        optimizer.step()
        after(number)


def broken_by_the_rate_of_the_second_group() -> None:
    model = classifier()
    groups = [{"params": model[0].parameters()}, {"params": model[3].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.01)

    def schedule(number: int) -> None:
        optimizer.param_groups[1]["lr"] = float("inf") if number == 2 else 0.01

    plain_train(model, optimizer, schedule)


def broken_by_a_rate_near_the_maximum_of_fp32() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    plain_train(model, torch.optim.SGD(model.parameters(), lr=1e38), lambda _: None, size=20.0)


def broken_by_a_division_after_the_step() -> None:
    model = classifier()

    def normalise(number: int) -> None:
        with torch.no_grad():
            if number == 3:
                model[3].weight[1] -= model[3].weight[1]
            model[3].weight.div_(model[3].weight.norm(dim=1, keepdim=True))

    plain_train(model, torch.optim.SGD(model.parameters(), lr=0.01), normalise)


def gradient_that_no_sample_contains() -> None:
    """After 64 steps, doctor checks only some elements of a long gradient, not the NaN here."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for number in range(68):
        if number == 65:
            model[0].weight.data[40, 40] = 0.0
        optimizer.zero_grad()
        (model(torch.randn(4, 80)).square().mean() + model[0].weight.abs().sqrt().mean()).backward()
        optimizer.step()


def broken_by_an_eps_of_zero_at_a_high_rate() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).half()
    with torch.no_grad():
        model[0].bias[:4] = -100.0  # these units are always 0, and so are their gradients
    optimizer = torch.optim.Adam(model.parameters(), lr=30.0, eps=0.0)
    images = torch.randn(8, 6).half()
    loss = model(images).float().square().sum() * 2.0**10
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model(images).float().square().mean().backward()
    optimizer.step()


def broken_in_a_second_phase() -> None:
    """The first phase has learned its task, so the first loss of the second one is far above."""
    torch.manual_seed(0)
    model, adapter = nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 3))
    nn.init.zeros_(adapter[1].weight)
    first = torch.optim.Adam(model.parameters(), lr=0.1)
    for inputs, _ in batches(60):
        first.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs[:, :3]).backward()
        first.step()
    model.requires_grad_(requires_grad=False)
    second = LayerRates(adapter.parameters(), {})
    for inputs, _ in batches(6, seed=1):
        second.zero_grad()
        outputs = model(inputs) + adapter(inputs)
        nn.functional.mse_loss(outputs, 5 - inputs[:, :3]).backward()
        second.step()
