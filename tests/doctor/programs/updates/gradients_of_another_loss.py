"""A GAN whose discriminator also applies the gradients of the generator's loss."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "GRADIENTS_OF_ANOTHER_LOSS"


class Gan:
    """A generator, a discriminator and their optimizers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.generator = nn.Linear(6, 6)
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        self.first = torch.optim.SGD(self.generator.parameters(), lr=0.01)
        self.second = torch.optim.SGD(self.discriminator.parameters(), lr=0.01)

    def lead(self, noise: torch.Tensor) -> torch.Tensor:
        return functional.softplus(-self.discriminator(self.generator(noise))).mean()

    def judge(self, noise: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        fake = self.discriminator(self.generator(noise).detach())
        return (functional.softplus(fake) + functional.softplus(-self.discriminator(images))).mean()


def train(*, late: bool) -> None:
    gan = Gan()
    for images, _ in batches(6):
        if late:
            gan.second.zero_grad()
        gan.judge(torch.randn(8, 6), images).backward()
        gan.second.step()
        if not late:
            gan.second.zero_grad()
        gan.first.zero_grad()
        gan.lead(torch.randn(8, 6)).backward()
        gan.first.step()


def broken() -> None:
    train(late=False)


def mended() -> None:
    train(late=True)


def broken_generator_first() -> None:
    gan = Gan()
    for images, _ in batches(6):
        gan.first.zero_grad()
        gan.second.zero_grad()
        gan.lead(torch.randn(8, 6)).backward()
        gan.first.step()
        gan.judge(torch.randn(8, 6), images).backward()
        gan.second.step()


def broken_by_one_function_for_both() -> None:
    gan = Gan()

    def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for images, _ in batches(6):
        update(gan.first, gan.lead(torch.randn(8, 6)))
        update(gan.second, gan.judge(torch.randn(8, 6), images))


def attack(*, early: bool, passes: int = 3) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        if early:
            optimizer.zero_grad()
        shift = torch.zeros_like(images)
        for _ in range(passes):
            shift = shift.detach().requires_grad_()
            functional.cross_entropy(model(images + shift), labels).backward()
            shift = shift + 0.1 * shift.grad.sign()
        if not early:
            optimizer.zero_grad()
        functional.cross_entropy(model(images + shift.detach()), labels).backward()
        optimizer.step()


def broken_attack() -> None:
    attack(early=True)


def broken_attack_by_an_optimizer() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shift = torch.zeros(8, 6, requires_grad=True)
    ascent = torch.optim.SGD([shift], lr=0.1, maximize=True)
    for images, labels in batches(6):
        optimizer.zero_grad()
        for _ in range(3):
            ascent.zero_grad()
            functional.cross_entropy(model(images + shift), labels).backward()
            ascent.step()
        functional.cross_entropy(model(images + shift.detach()), labels).backward()
        optimizer.step()


def healthy_attack() -> None:
    attack(early=False)


def healthy_attack_that_adds_one_loss_of_clean_images() -> None:
    attack(early=True, passes=1)


def healthy_attack_by_grad() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad()
        changed = images
        for _ in range(3):
            changed = changed.detach().requires_grad_()
            loss = functional.cross_entropy(model(changed), labels)
            (slope,) = torch.autograd.grad(loss, changed)
            changed = changed + 0.1 * slope.sign()
        functional.cross_entropy(model(changed.detach()), labels).backward()
        optimizer.step()


def healthy_adversarial_training_for_free() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shift = torch.zeros(8, 6)
    for images, labels in batches(6):
        shift = shift.detach().requires_grad_()
        optimizer.zero_grad()
        functional.cross_entropy(model(images + shift), labels).backward()
        optimizer.step()
        shift = shift + 0.1 * shift.grad.sign()


def healthy_input_whose_gradient_is_only_zeroed() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    points = torch.randn(8, 6, requires_grad=True)
    for _, labels in batches(6):
        optimizer.zero_grad()
        for scale in (1.0, 2.0, 3.0):
            if points.grad is not None:
                points.grad.zero_()
            functional.cross_entropy(scale * model(points), labels).backward()
        optimizer.step()


def healthy_trunk_with_two_losses() -> None:
    torch.manual_seed(0)
    trunk, one, other = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
    first = torch.optim.SGD(one.parameters(), lr=0.01)
    second = torch.optim.SGD([*trunk.parameters(), *other.parameters()], lr=0.01)
    for images, labels in batches(6):
        first.zero_grad()
        second.zero_grad()
        functional.cross_entropy(one(trunk(images)), labels).backward()
        first.step()
        functional.cross_entropy(other(trunk(images)), labels).backward()
        second.step()


def healthy_joint_loss() -> None:
    gan = Gan()
    for images, _ in batches(6):
        gan.first.zero_grad()
        gan.second.zero_grad()
        gan.discriminator(gan.generator(images)).square().mean().backward()
        gan.first.step()
        gan.second.step()


def healthy_gradient_penalty() -> None:
    gan = Gan()
    for images, _ in batches(6):
        gan.second.zero_grad()
        gan.discriminator(images).mean().neg().backward()
        gan.discriminator(gan.generator(images).detach()).mean().backward()
        between = images.clone().requires_grad_()
        (slope,) = torch.autograd.grad(gan.discriminator(between).sum(), between, create_graph=True)
        (slope.norm(dim=1) - 1).square().mean().backward()
        gan.second.step()
        gan.first.zero_grad()
        gan.lead(torch.randn(8, 6)).backward()
        gan.first.step()


def at_once(lead, judge, *, generator_first: bool = False) -> None:
    """Both backward passes of a step run before both optimizers step.

    Args:
        lead: Computes the gradients of the generator.
        judge: Computes those of the discriminator.
        generator_first: Which of both runs first.
    """
    gan = Gan()
    passes = (lead, judge) if generator_first else (judge, lead)
    for images, _ in batches(8):
        gan.first.zero_grad()
        gan.second.zero_grad()
        for each in passes:
            each(gan, images)
        gan.second.step()
        gan.first.step()


def led(gan: Gan, images: torch.Tensor) -> None:
    gan.lead(torch.randn(8, 6)).backward()


def judged(gan: Gan, images: torch.Tensor) -> None:
    gan.judge(torch.randn(8, 6), images).backward()


def broken_by_both_passes_before_both_steps() -> None:
    at_once(led, judged)


def broken_by_the_pass_of_the_generator_before_both_steps() -> None:
    at_once(led, judged, generator_first=True)


def broken_by_an_actor_whose_loss_also_trains_the_critic() -> None:
    def lead(gan: Gan, images: torch.Tensor) -> None:
        (-gan.discriminator(gan.generator(images))).mean().backward()

    def judge(gan: Gan, images: torch.Tensor) -> None:
        functional.mse_loss(gan.discriminator(images), images.sum(1, keepdim=True)).backward()

    at_once(lead, judge)


def healthy_pass_for_the_generator_alone() -> None:
    def lead(gan: Gan, images: torch.Tensor) -> None:
        gan.lead(torch.randn(8, 6)).backward(inputs=[*gan.generator.parameters()])

    at_once(lead, judged)


def healthy_gradients_that_are_cleared_between() -> None:
    def judge(gan: Gan, images: torch.Tensor) -> None:
        gan.second.zero_grad()
        judged(gan, images)

    at_once(led, judge, generator_first=True)


def healthy_encoder_and_decoder() -> None:
    """The discriminator is a decoder here, which also has a loss of its own."""

    def lead(gan: Gan, images: torch.Tensor) -> None:
        made = gan.discriminator(gan.generator(images))
        functional.mse_loss(made, images.sum(1, keepdim=True)).backward()

    def judge(gan: Gan, images: torch.Tensor) -> None:
        functional.mse_loss(gan.discriminator(images), images[:, :1]).backward()

    at_once(lead, judge)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        return given.view_as(given)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def healthy_reversed_gradient() -> None:
    """One loss of the generator's samples serves both, and another one is of the images."""

    def lead(gan: Gan, images: torch.Tensor) -> None:
        fake = Reversed.apply(gan.generator(torch.randn(8, 6)))
        functional.softplus(gan.discriminator(fake)).mean().backward()

    def judge(gan: Gan, images: torch.Tensor) -> None:
        functional.softplus(-gan.discriminator(images)).mean().backward()

    at_once(lead, judge)


def healthy_pairs_that_both_tell_apart() -> None:
    """The generator is an encoder: the discriminator tells its pairs from those of others."""

    def lead(gan: Gan, images: torch.Tensor) -> None:
        codes = gan.generator(images)
        same = functional.softplus(-gan.discriminator(codes + images)).mean()
        other = functional.softplus(gan.discriminator(codes + images.roll(1, 0))).mean()
        (same + other).backward()

    def judge(gan: Gan, images: torch.Tensor) -> None:
        (0.01 * sum(each.square().sum() for each in gan.discriminator.parameters())).backward()

    at_once(lead, judge)


def healthy_encoder_and_decoder_far_from_their_targets() -> None:
    """All predictions are too small in all steps."""

    def lead(gan: Gan, images: torch.Tensor) -> None:
        made = gan.discriminator(gan.generator(images))
        functional.mse_loss(made, 50 + images.sum(1, keepdim=True)).mul(1e-4).backward()

    def judge(gan: Gan, images: torch.Tensor) -> None:
        functional.mse_loss(gan.discriminator(images), images[:, :1]).mul(1e-4).backward()

    at_once(lead, judge)
