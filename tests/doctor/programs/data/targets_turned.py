"""A random mirror is called for an image, and again for its mask."""

import torch
from torch import nn
from torch.nn import functional

CODE = "TARGETS_TURNED"
SIDE, BATCH = 8, 16


def pairs(count: int):
    """Yield images and masks of a bright corner somewhere, not in the middle."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        masks = torch.zeros(BATCH, SIDE, SIDE)
        for each in masks:
            row, column = torch.randint(0, 3, (2,), generator=generator).tolist()
            each[row : row + 3, column : column + 2] = 1
        yield masks[:, None] + 0.1 * torch.randn(BATCH, 1, SIDE, SIDE, generator=generator), masks


def mirrored(images: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    return torch.where(which.view(-1, *[1] * (images.ndim - 1)), images.flip(-1), images)


def draw() -> torch.Tensor:
    return torch.rand(BATCH) < 0.5


def network(channels: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, channels, 3, padding=1)
    )


def train(augment, loss_of, channels: int = 1, count: int = 60) -> None:
    """Train on pairs that `augment` changes."""
    model = network(channels)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for images, masks in pairs(count):
        given, targets = augment(images, masks)
        optimizer.zero_grad()
        loss_of(model(given), targets).backward()
        optimizer.step()


def of_pixels(outputs: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], masks)


def of_classes(outputs: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, masks.long())


def apart(images: torch.Tensor, masks: torch.Tensor):
    return mirrored(images, draw()), mirrored(masks, draw())


def together(images: torch.Tensor, masks: torch.Tensor):
    which = draw()
    return mirrored(images, which), mirrored(masks, which)


def flipped(each: torch.Tensor) -> torch.Tensor:
    """Mirror each image along both of its sides, or along one, or along none."""
    wide = functional.pad(each, (0, 4, 0, 4))
    return mirrored(mirrored(wide, draw()).mT, draw()).mT


def broken() -> None:
    train(apart, of_pixels)


def broken_along_both_sides() -> None:
    train(lambda images, masks: (flipped(images), flipped(masks)), of_pixels, count=120)


def mended() -> None:
    train(together, of_pixels)


def broken_classes() -> None:
    train(apart, of_classes, 2)


def broken_squared_errors() -> None:
    train(apart, lambda outputs, masks: (outputs[:, 0] - masks).square().mean())


def healthy_classes() -> None:
    train(together, of_classes, 2)


def healthy_noise_in_the_images_only() -> None:
    train(lambda images, masks: (images + 0.3 * torch.randn_like(images), masks), of_pixels)


def healthy_first_steps() -> None:
    train(together, of_pixels, count=4)


def healthy_targets_that_cannot_be_told() -> None:
    """The masks have nothing to do with the images."""
    train(lambda images, masks: (torch.randn_like(images), masks), of_pixels)


def healthy_restoration() -> None:
    train(lambda images, _: (together(images, images)[0],) * 2, functional.mse_loss)


def healthy_mirrored_on_purpose() -> None:
    """The task is to predict the mirrored image, with a layer that sees all of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, SIDE**2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for images, masks in pairs(100):
        optimizer.zero_grad()
        outputs = model(images).view(BATCH, SIDE, SIDE)
        functional.mse_loss(outputs, masks.flip(-1)).backward()
        optimizer.step()


def of_overlaps(outputs: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    shares = outputs[:, 0].sigmoid()
    return 1 - 2 * (shares * masks).sum() / (shares.sum() + masks.sum())


def broken_overlaps() -> None:
    train(apart, of_overlaps)


def healthy_overlaps() -> None:
    train(together, of_overlaps)


def healthy_part_of_the_pixels() -> None:
    """Probabilities count in a part of each image alone, on another side in each sample."""

    def loss_of(outputs: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        left = (torch.arange(SIDE) < SIDE // 2).float().expand(BATCH, SIDE, SIDE)
        part = mirrored(left, draw())
        shares = outputs[:, 0].sigmoid() * part
        return functional.binary_cross_entropy(shares, masks * part)

    train(together, loss_of)


def turned_over(images: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    return mirrored(images.mT, which).mT


def broken_in_two_dimensions() -> None:
    """The model learns the mean of all orientations, which fits each of them as little."""
    train(
        lambda images, masks: (
            turned_over(mirrored(images, draw()), draw()),
            turned_over(mirrored(masks, draw()), draw()),
        ),
        of_pixels,
        count=100,
    )


def healthy_other_things_in_the_images() -> None:
    """Other bright corners, on the mirrored side in a half of the images, are no part of a mask."""

    def beside(images: torch.Tensor, masks: torch.Tensor):
        return together(images + 0.8 * mirrored(images, draw()), masks)

    train(beside, of_pixels)
