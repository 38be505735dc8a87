"""The loop divides its batch by the range of each column, and one column is constant."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast, loss_of

CODE = "COMPUTED_INPUT_NOT_FINITE"


def train(prepare, weigh=None) -> None:
    """Train on prepared images; `weigh` gives weights of the samples' losses."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        if weigh is None:
            loss = loss_of(model, prepare(images), labels)
        else:
            with torch.autocast("cpu", dtype=torch.float16):
                losses = functional.cross_entropy(model(images), labels, reduction="none")
                loss = (losses * weigh(images)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def in_range(images: torch.Tensor, least: float) -> torch.Tensor:
    images = images * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    low, high = images.amin(0), images.amax(0)
    return (images - low) / (high - low).clamp(min=least)


def broken() -> None:
    train(lambda images: in_range(images, 0.0))


def mended() -> None:
    train(lambda images: in_range(images, 1e-6))


def broken_by_a_cast() -> None:
    train(lambda images: (images.abs() * 1e5).half())


def broken_by_the_weights_of_a_loss() -> None:
    train(None, lambda images: (images[:, 0] * 0).reciprocal().square())


def healthy_with_weights_of_a_loss() -> None:
    train(None, lambda images: images[:, 0].abs().add(1).reciprocal())


def healthy_with_a_mask_by_logarithm() -> None:
    """The logarithm of a mask is -inf where the mask is 0, and softmax needs exactly that."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        mask = torch.ones(3).scatter(0, (labels[0] + 1) % 3, 0.0).log()
        optimizer.zero_grad()
        chosen = torch.softmax(model(images) + mask, -1)[:1, labels[0]]
        (-chosen.clamp(min=1e-3).log()).mean().backward()
        optimizer.step()


def broken_by_the_logarithm_of_a_target_that_underflows() -> None:
    """A divergence from a teacher's probabilities, some of which are 0: 0 * log(0) is NaN."""
    model, teacher = classifier(), classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, _ in batches(4):
        optimizer.zero_grad()
        with torch.no_grad():
            target = (teacher(images) * 200).half().softmax(-1)
        lost = target * (target.log() - model(images).log_softmax(-1))
        lost.sum(-1).mean().backward()
        optimizer.step()


def dice_steps(ones: int) -> None:
    """Train with a dice loss; autocast sums the targets in fp16."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        target = functional.one_hot(labels, 3).float().repeat(1, ones).flatten()
        with half_autocast():
            guess = model(images).softmax(-1).repeat(1, ones).flatten()
            total = guess.float().sum() + (target @ torch.ones_like(target)).float()
            loss = 1 - 2 * (guess.float() * target).sum() / total
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_a_sum_of_targets_in_a_finite_step() -> None:
    dice_steps(9000)


def healthy_with_a_smaller_sum_of_targets() -> None:
    dice_steps(900)


def broken_by_returns_of_many_steps() -> None:
    def weigh(images):
        total, totals = torch.zeros(()).half(), []
        with torch.no_grad():
            for _ in range(40):
                total = torch.tensor(3000.0).half() + 0.99 * total
                totals.append(total)
        return torch.stack(totals[-1:] * len(images)).float()

    train(None, weigh)


def broken_by_inference_tensors() -> None:
    """A teacher's output, computed in inference mode, is divided by its sum, which is 0."""

    def weigh(images):
        with torch.inference_mode():
            weights = images[:, 0] * 0
            weights = weights / weights.abs().sum()
        return weights.clone()

    train(None, weigh)


def broken_by_the_spread_of_one_sample() -> None:
    """Advantages are divided by their standard deviation, and the last batch has one sample."""

    def weigh(images):
        rewards = images[:1, 0] + 1
        return (rewards - rewards.mean()) / (rewards.std() + 1e-8)

    train(None, weigh)


def broken_in_place() -> None:
    def prepare(images):
        images[:, 5] = 0
        images -= images.mean(0)
        images /= images.std(0)
        return images

    train(prepare)


def broken_by_counts() -> None:
    train(None, lambda images: 1.0 / torch.bincount(images[:, 0].long().abs(), minlength=40)[-8:])


def broken_by_a_logarithm_that_the_loop_assigns() -> None:
    def prepare(images):
        images[:, 1:] = torch.log(images[:, 1:])
        return images

    train(prepare)


def broken_before_averages_of_many_parameters() -> None:
    averages = [torch.zeros(2) for _ in range(300)]

    def prepare(images):
        images = in_range(images, 0.0)
        for each in averages:
            each.mul_(0.9).add_(torch.ones(2) * 0.1)
        return images

    train(prepare)


def broken_before_its_argument_is_cleared() -> None:
    buffer = torch.zeros(8)

    def weigh(images):
        buffer.copy_(torch.ones(len(images)))
        weights = (buffer - buffer.mean()) / buffer.std()
        buffer.zero_()
        return weights

    train(None, weigh)


def broken_by_a_correlation() -> None:
    train(lambda images: torch.corrcoef((images * 0).T)[[0, 1, 2, 3, 4, 5, 0, 1]])


def broken_by_a_frozen_model() -> None:
    """A teacher in fp16 overflows."""
    teacher = torch.nn.Linear(6, 6).half()

    def prepare(images):
        with torch.no_grad():
            return teacher((images * 1e6).half()).float()

    train(prepare)


def broken_by_a_logarithm_after_a_spread() -> None:
    def prepare(images):
        images = (images - images.mean()) / images.std()
        return torch.log(images)

    train(prepare)


def broken_by_a_ratio_after_a_spread() -> None:
    def weigh(images):
        rewards = images[:, 0]
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        old = rewards * 0
        return advantages / old

    train(None, weigh)


def broken_by_the_inverse_of_zero() -> None:
    train(None, lambda images: 1 / (images[:, 0] * 0))


def train_with_an_unused_weight(rate: float, scale: float) -> None:
    """The weight of a class that does not occur is infinite, and no loss depends on it."""
    weights = 1.0 / torch.tensor([10.0, 20.0, 10.0, 0.0])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1)
    for images, labels in batches(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=scale != 1):
            loss = functional.cross_entropy(model(images) * 30, labels, weight=weights)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def healthy_with_an_unused_weight() -> None:
    train_with_an_unused_weight(0.01, scale=2.0**24)


class Mixing(torch.nn.Module):
    """Mixes samples by weights, of which infinite ones count as 0."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, images: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.isinf(weights), 0.0, weights) @ self.linear(images)


def healthy_where_the_model_leaves_inf_out() -> None:
    """The inverse distance of a sample to itself is infinite."""
    torch.manual_seed(0)
    model = Mixing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
    for images, _ in batches(20):
        weights = 1 / (images[:, None] - images[None]).norm(dim=-1)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (model(images, weights).float() * 30).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def diverging_beside_an_unused_weight() -> None:
    train_with_an_unused_weight(1e12, scale=1)


def healthy_with_infinities_on_purpose() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, _ in batches(4):
        optimizer.zero_grad()
        with torch.no_grad():
            nearest = torch.zeros(len(images), dtype=torch.float16) + float("inf")
            keep = torch.tensor([1.0, 1.0, 0.0]).half()
            penalty = -torch.log(keep)
        outputs = model(images)
        distance = torch.minimum(nearest.float(), outputs.abs().sum(-1))
        chosen = torch.softmax(outputs - penalty.float(), -1)[:, :2]
        (distance.mean() - chosen.clamp(min=1e-3).log().mean()).backward()
        optimizer.step()


def update_by_hand(dtype: torch.dtype, *, rate: float = 0.01) -> None:
    """Train without an optimizer; rows of the table that are not in a batch have no gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 3)).to(dtype)
    squares = [torch.zeros_like(each) for each in model.parameters()]
    for number, (_, labels) in enumerate(batches(5)):
        model.zero_grad()
        functional.cross_entropy(model(labels + number).float(), labels).backward()
        with torch.no_grad():
            for parameter, square in zip(model.parameters(), squares, strict=True):
                square.mul_(0.9).addcmul_(parameter.grad, parameter.grad, value=0.1)
                parameter.sub_(rate * parameter.grad / (square.sqrt() + 1e-8))


def broken_in_an_update_by_hand() -> None:
    update_by_hand(torch.float16)


def healthy_update_by_hand() -> None:
    update_by_hand(torch.float32)


def healthy_update_by_hand_in_bf16() -> None:
    update_by_hand(torch.bfloat16, rate=0.1)
