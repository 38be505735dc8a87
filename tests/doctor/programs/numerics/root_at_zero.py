"""A distance between features that are equal."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import classifier, half_autocast, plain_steps

CODE = "ROOT_AT_ZERO"


def train(eps: float) -> None:
    def loss_function(outputs, labels):
        distance = (outputs - outputs.detach()).square().sum(1)
        return functional.cross_entropy(outputs, labels) + (distance + eps).sqrt().mean()

    plain_steps(classifier(), loss_function)


def broken() -> None:
    train(0.0)


def mended() -> None:
    train(1e-6)


def healthy_search_of_a_loss_scale_with_dead_features() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(64, 256), nn.Linear(256, 10)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    centers = torch.rand(10, 64)
    for _ in range(8):
        labels = torch.randint(0, 10, (128,))
        optimizer.zero_grad()
        with half_autocast():
            features = body(centers[labels] + 0.2 * torch.rand(128, 64)).relu()
            features = (features - features.mean(0)) / torch.sqrt(features.var(0) + 1e-4)
            loss = functional.cross_entropy(head(features), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_an_angle_of_zero() -> None:
    def loss_function(outputs, _):
        cosine = functional.cosine_similarity(outputs, outputs.detach(), dim=1).clamp(-1, 1)
        return torch.where(cosine > 0.99, cosine * 0 + 1, cosine).acos().mean()

    plain_steps(classifier(), loss_function)


def broken_in_a_focal_loss_while_the_loss_scale_is_too_high() -> None:
    """A lower loss scale would help against the logarithm's overflow, but not the root's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        images = torch.randn(16, 8, generator=generator)
        labels = torch.randint(0, 3, (16,), generator=generator)
        optimizer.zero_grad()
        with half_autocast():
            chosen = (model(images * 3) * 30).softmax(-1).gather(1, labels[:, None])
            loss = ((1 - chosen) ** 0.5 * -(chosen + 1e-4).log()).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def of_slopes(slope) -> None:
    """Train with a penalty on slopes that are 0 at first."""

    def loss_function(outputs, labels):
        flat = outputs - outputs.detach()
        return functional.cross_entropy(outputs, labels) + slope(flat[:, 0], flat[:, 1]).mean()

    plain_steps(classifier(), loss_function)


def broken_by_a_hypotenuse_of_zero() -> None:
    of_slopes(torch.hypot)


def healthy_hypotenuse_above_zero() -> None:
    of_slopes(lambda across, along: torch.hypot(torch.hypot(across + 1, along), along))


def healthy_norm_of_zero() -> None:
    of_slopes(lambda across, along: torch.linalg.vector_norm(torch.stack([across, along]), dim=0))
