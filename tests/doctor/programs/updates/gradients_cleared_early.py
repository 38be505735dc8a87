"""Accumulation over four batches, with the gradients cleared before each of them."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "GRADIENTS_CLEARED_EARLY"
PARTS = 4


def train(*, early: bool, scaled: bool = True) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, enabled=scaled)
    for number, (images, labels) in enumerate(batches(6 * PARTS)):
        if early or number % PARTS == 0:
            optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels) / PARTS).backward()
        if number % PARTS == PARTS - 1:
            scaler.step(optimizer)
            scaler.update()


def broken() -> None:
    train(early=True)


def mended() -> None:
    train(early=False)


def broken_without_a_scaler() -> None:
    train(early=True, scaled=False)


def broken_by_the_model() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(14)):
        model.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        if number % 3 == 2 or number == 13:  # the last window is shorter
            optimizer.step()


def healthy_sharpness_aware() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def gradients(images, labels) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()

    for images, labels in batches(6):
        moves = []
        for _ in range(2):  # ascends twice, to a point with a larger loss
            gradients(images, labels)
            with torch.no_grad():
                norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
                for each in model.parameters():
                    moves.append((each, 0.05 * each.grad / norm))
                    each.add_(moves[-1][1])
        gradients(images, labels)
        with torch.no_grad():
            for each, move in moves:
                each.sub_(move)
        optimizer.step()


def healthy_search_along_a_line() -> None:
    model = classifier()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    for images, labels in batches(4):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)  # noqa: B023
            loss.backward()
            return loss

        optimizer.step(closure)


def healthy_adversarial_with_one_function() -> None:
    generator, discriminator = nn.Linear(6, 6), classifier()
    first = torch.optim.SGD(generator.parameters(), lr=0.01)
    second = torch.optim.SGD(discriminator.parameters(), lr=0.01)

    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    for images, labels in batches(6):
        for _ in range(3):
            first.zero_grad()
            backward(-nn.functional.cross_entropy(discriminator(generator(images)), labels))
            first.step()
        second.zero_grad()
        backward(nn.functional.cross_entropy(discriminator(generator(images).detach()), labels))
        second.step()


def healthy_leaves_out_bad_batches() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(12)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        if number in (3, 4, 5):  # such as batches with wrong labels
            continue
        optimizer.step()


def healthy_gradients_of_several_tasks() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        stash = []
        for part in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images + part), labels).backward()
            stash.append([each.grad for each in model.parameters()])
        for each, *gradients in zip(model.parameters(), *stash, strict=True):
            each.grad = sum(gradients)
        optimizer.step()


def broken_before_clipping() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for number, (images, labels) in enumerate(batches(6 * PARTS)):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels) / PARTS).backward()
        if number % PARTS == PARTS - 1:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


def broken_for_two_optimizers() -> None:
    body, head = nn.Linear(6, 16), nn.Linear(16, 3)
    both = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (body, head)]
    for number, (images, labels) in enumerate(batches(6 * PARTS)):
        for each in both:
            each.zero_grad()
        nn.functional.cross_entropy(head(body(images).relu()), labels).backward()
        if number % PARTS == PARTS - 1:
            for each in both:
                each.step()


def accumulate_after(attack) -> None:
    """Train with a function that calls backward(), which an attack calls too."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def gradients(images, labels) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()

    for images, labels in batches(6):
        attack(model, gradients, images, labels)
        optimizer.step()


def healthy_adversarial_images() -> None:
    def attack(model, gradients, images, labels) -> None:
        noise = torch.zeros_like(images, requires_grad=True)
        for _ in range(3):
            gradients(images + noise, labels)
            noise = (noise + 0.1 * noise.grad.sign()).detach().requires_grad_()
        gradients(images + noise.detach(), labels)

    accumulate_after(attack)


def healthy_sum_of_squares() -> None:
    def attack(model, gradients, images, labels) -> None:
        squares = [torch.zeros_like(each) for each in model.parameters()]
        for part in range(4):
            gradients(images + part, labels)
            for square, each in zip(squares, model.parameters(), strict=True):
                square.add_(each.grad.data**2)

    accumulate_after(attack)


def healthy_gradients_moved_out() -> None:
    def attack(model, gradients, images, labels) -> None:
        kept = []
        for part in range(4):
            gradients(images + part, labels)
            kept.append([each.grad for each in model.parameters()])
        for each, *others in zip(model.parameters(), *kept[:-1], strict=True):
            for other in others:
                each.grad.add_(other)

    accumulate_after(attack)


def healthy_batches_left_out_elsewhere() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(24)):
        nn.functional.cross_entropy(model(images), labels).backward()
        if number % 4:  # such as a batch whose loss is an outlier
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()


def healthy_pass_for_another_purpose() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def clear() -> None:
        optimizer.zero_grad()

    for images, labels in batches(6):
        for _ in range(3):
            clear()
            model(images).sum().backward()  # such as the passes that a profiler times
        clear()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_lbfgs() -> None:
    model = classifier()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for images, labels in batches(6):

        def closure(images=images, labels=labels) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            return loss

        optimizer.step(closure)


def accumulate_two(*, zero, scaled: bool = False) -> None:
    """Step after every second batch; `zero(model, optimizer)` clears before each forward."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, enabled=scaled)
    for number, (images, labels) in enumerate(batches(12)):
        zero(model, optimizer)
        scaler.scale(loss_of(model, images, labels) / 2).backward()
        if number % 2 == 1:
            scaler.step(optimizer)
            scaler.update()


def broken_in_an_accumulation_of_two() -> None:
    accumulate_two(zero=lambda model, optimizer: optimizer.zero_grad())


def broken_in_an_accumulation_of_two_by_the_model() -> None:
    accumulate_two(zero=lambda model, optimizer: model.zero_grad(), scaled=True)


def broken_between_forward_and_backward() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(12)):
        loss = nn.functional.cross_entropy(model(images), labels) / 2
        optimizer.zero_grad()
        loss.backward()
        if number % 2 == 1:
            optimizer.step()


def broken_in_a_function_for_each_micro_batch() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def micro_batch(images, labels) -> None:
        for each in model.parameters():
            each.grad = None
        nn.functional.cross_entropy(model(images), labels).backward()

    for images, labels in batches(8):
        for part, target in zip(images.chunk(2), labels.chunk(2), strict=True):
            micro_batch(part, target)
        optimizer.step()


def healthy_accumulation_with_a_short_last_window() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        data = list(batches(7))
        for number, (images, labels) in enumerate(data):
            nn.functional.cross_entropy(model(images), labels).backward()
            if number % 2 == 1 or number == len(data) - 1:
                optimizer.step()
                optimizer.zero_grad()


def healthy_adversarial_that_discards_the_generators_gradients() -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    makes = torch.optim.Adam(generator.parameters(), lr=1e-3)
    judges = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for images, _ in batches(8):
        judges.zero_grad()
        fake = generator(torch.randn(8, 4))  # not detached: the generator gets gradients, too
        (critic(fake).mean() - critic(images).mean()).backward()
        judges.step()
        makes.zero_grad()
        (-critic(generator(torch.randn(8, 4))).mean()).backward()
        makes.step()


def healthy_batches_of_a_warm_up_that_is_thrown_away() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(12)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        if number in (0, 2, 5):  # such as a batch whose gradients are too large
            continue
        optimizer.step()
