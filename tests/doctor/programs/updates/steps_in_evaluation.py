"""One function makes the steps of the training and of the evaluation, in evaluation mode too."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "STEPS_IN_EVALUATION"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.LazyLinear(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    )


def phases(update, epochs: int = 4) -> None:
    """Give each batch of each phase to `update`, with the name of the phase."""
    for epoch in range(epochs):
        for phase, count in (("train", 8), ("val", 3)):
            for images, labels in batches(count, seed=2 * epoch + (phase == "val")):
                update(phase, images, labels)


def train(*, always: bool) -> None:
    model = network()
    model(next(batches(1))[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def update(phase, images, labels) -> float:
        model.train(phase == "train")
        loss = nn.functional.cross_entropy(model(images), labels)
        if always or phase == "train":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    phases(update)


def broken() -> None:
    train(always=True)


def mended() -> None:
    train(always=False)


def broken_with_a_scaler() -> None:
    model = network()
    model(next(batches(1))[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def update(phase, images, labels) -> None:
        model.train() if phase == "train" else model.eval()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    phases(update)


def healthy_last_steps_in_evaluation_mode() -> None:
    """The last steps adapt the weights to what the layers compute without dropout."""
    model = network()
    model(next(batches(1))[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step, (images, labels) in enumerate(batches(32)):
        model.train(step < 24)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_one_phase_in_evaluation_mode() -> None:
    """In the middle, the weights adapt to what the layers compute without dropout, once."""
    model = network()
    model(next(batches(1))[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step, (images, labels) in enumerate(batches(32)):
        model.train(not 12 <= step < 20)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_discriminator_in_evaluation_mode() -> None:
    """The generator's steps see the discriminator in evaluation mode, and do not move it."""
    torch.manual_seed(0)
    generator, scorer = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2))
    scorer.append(nn.Linear(8, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.001)
    of_scorer = torch.optim.Adam(scorer.parameters(), lr=0.001)
    for step in range(36):
        turns = step % 3 == 2
        scorer.train(not turns)
        made = generator(torch.randn(8, 4))
        scores = scorer(made if turns else made.detach())
        loss = nn.functional.softplus(-scores if turns else scores).mean()
        if not turns:
            loss = loss + nn.functional.softplus(-scorer(torch.randn(8, 8) + 2)).mean()
        optimizer = of_generator if turns else of_scorer
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_attack_in_evaluation_mode() -> None:
    """Each step also learns from the same images, changed so that the model errs."""
    model = network()
    model(next(batches(1))[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for images, labels in batches(12):
        for mode in (True, False):
            model.train(mode)
            given = images if mode else images + 0.05 * torch.randn_like(images).sign()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(given), labels).backward()
            optimizer.step()
