"""The features of an encoder are detached before the head, so only the head learns."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "PART_WITHOUT_GRADIENT"


class Model(nn.Module):
    """An encoder, something between, and a head.

    Args:
        between: Computes the head's input from the encoder and the images.
    """

    def __init__(self, between) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 3)
        self.between = between

    def forward(self, images):
        return self.head(self.between(self.encoder, images))


def train(model: nn.Module, parameters=None, count: int = 6) -> None:
    optimizer = torch.optim.Adam(parameters or model.parameters(), lr=0.01)
    for images, labels in batches(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def without_gradients(encoder, images):
    with torch.no_grad():
        return encoder(images)


def broken() -> None:
    train(Model(lambda encoder, images: encoder(images).detach().relu()))


def mended() -> None:
    train(Model(lambda encoder, images: encoder(images).relu()))


def broken_under_no_grad() -> None:
    train(Model(lambda encoder, images: without_gradients(encoder, images).tanh()))


def broken_by_data() -> None:
    train(Model(lambda encoder, images: encoder(images).data + 1))


def broken_in_the_loop() -> None:
    torch.manual_seed(0)
    encoder, head = nn.Linear(6, 16), nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad()
        with torch.no_grad():
            features = encoder(images).relu()
        nn.functional.cross_entropy(head(features), labels).backward()
        optimizer.step()


def broken_by_a_gate_that_only_chooses() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gate = nn.Linear(6, 2)
            self.experts = nn.Parameter(torch.randn(2, 6, 3))

        def forward(self, images):
            chosen = self.gate(images).argmax(1)
            return torch.einsum("bi,bio->bo", images, self.experts[chosen])

    train(Gated())


def broken_where_the_loop_detaches() -> None:
    """Two models, whose parameters have the same names."""
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(body(images).detach()), labels).backward()
        optimizer.step()


def healthy_frozen_encoder() -> None:
    model = Model(lambda encoder, images: encoder(images).detach())
    model.encoder.requires_grad_(requires_grad=False)
    train(model)


def healthy_encoder_that_was_loaded() -> None:
    model = Model(lambda encoder, images: encoder(images).detach())
    model.encoder.load_state_dict(Model(None).encoder.state_dict())
    train(model)


def healthy_head_alone_in_the_optimizer() -> None:
    model = Model(without_gradients)
    train(model, model.head.parameters())


def healthy_stop_gradient_on_one_side() -> None:
    torch.manual_seed(0)
    encoder, predictor = nn.Linear(6, 16), nn.Linear(16, 16)
    optimizer = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.01)
    for images, _ in batches(6):
        optimizer.zero_grad()
        with torch.no_grad():
            target = encoder(images + 0.1)
        nn.functional.mse_loss(predictor(encoder(images)), target).backward()
        optimizer.step()


def healthy_codes_with_a_straight_through_gradient() -> None:
    class Coded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.encoder, self.head = nn.Linear(6, 4), nn.Linear(4, 3)
            self.codes = nn.Parameter(torch.randn(8, 4))

        def forward(self, images):
            states = self.encoder(images)
            nearest = torch.cdist(states, self.codes).argmin(1)
            with torch.no_grad():  # the codes are averages of the states
                self.codes[nearest] += 0.1 * (states - self.codes[nearest])
            return self.head(states + (self.codes[nearest] - states).detach())

    train(Coded())


def healthy_head_that_is_not_used() -> None:
    model = Model(lambda encoder, images: encoder(images))
    model.other = nn.Linear(16, 5)
    train(model)


def healthy_teacher_without_gradients() -> None:
    torch.manual_seed(0)
    student, teacher = nn.Linear(6, 3), nn.Linear(6, 3)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for images, _ in batches(6):
        optimizer.zero_grad()
        with torch.no_grad():
            target = teacher(images).softmax(1)
        nn.functional.cross_entropy(student(images), target).backward()
        optimizer.step()


class Scaled(Model):
    """The logits are multiplied by a learned scale within bounds.

    Args:
        scale: The first scale.
    """

    def __init__(self, scale: float) -> None:
        super().__init__(lambda encoder, images: encoder(images))
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, images):
        return super().forward(images) * self.scale.clamp(max=2.0).exp()


def broken_scale_beyond_its_bound() -> None:
    train(Scaled(14.0))


def healthy_scale_within_its_bound() -> None:
    train(Scaled(0.5))


def healthy_units_that_are_off_in_part() -> None:
    train(Model(lambda encoder, images: encoder(images).relu().clamp(max=0.5)))
