"""A penalty is added to the loss as a number that `item()` has made."""

import numpy as np
import torch
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "TERM_WITHOUT_GRADIENT"


def train(loss_of) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss_of(model, model(images), images, labels).backward()
        optimizer.step()


def broken() -> None:
    def loss_of(model, outputs, images, labels):
        penalty = sum(each.square().sum() for each in model.parameters())
        loss = functional.cross_entropy(outputs, labels)
        return loss + 0.01 * penalty.item()

    train(loss_of)


def mended() -> None:
    def loss_of(model, outputs, images, labels):
        penalty = sum(each.square().sum() for each in model.parameters())
        loss = functional.cross_entropy(outputs, labels)
        return loss + 0.01 * penalty

    train(loss_of)


def broken_share_of_errors() -> None:
    def loss_of(model, outputs, images, labels):
        errors = (outputs.argmax(1) != labels).float().mean()
        return functional.cross_entropy(outputs, labels) + 0.5 * errors

    train(loss_of)


def broken_penalty_without_gradients() -> None:
    def loss_of(model, outputs, images, labels):
        with torch.no_grad():
            penalty = sum(each.abs().sum() for each in model.parameters())
        return functional.cross_entropy(outputs, labels) + 1e-3 * penalty

    train(loss_of)


def broken_penalty_of_data() -> None:
    def loss_of(model, outputs, images, labels):
        penalty = model[0].weight.data.norm()
        return functional.cross_entropy(outputs, labels) + 1e-3 * penalty

    train(loss_of)


def broken_penalty_of_a_gradient() -> None:
    def loss_of(model, outputs, images, labels):
        images = images.clone().requires_grad_()
        found = functional.cross_entropy(model(images), labels)
        (slope,) = torch.autograd.grad(found, images, retain_graph=True)
        return found + 0.1 * slope.square().sum()

    train(loss_of)


def spread(outputs: torch.Tensor) -> np.floating:
    return np.median(np.abs(outputs.detach().numpy()))


def broken_penalty_of_numpy() -> None:
    def loss_of(model, outputs, images, labels):
        return functional.cross_entropy(outputs, labels) + 0.1 * spread(outputs)

    train(loss_of)


def broken_penalty_of_an_array() -> None:
    def loss_of(model, outputs, images, labels):
        differences = np.diff(outputs.detach().numpy(), axis=0)
        penalty = torch.from_numpy(differences).square().mean()
        return functional.cross_entropy(outputs, labels) + 0.1 * penalty

    train(loss_of)


class Spread(torch.nn.Module):
    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return (outputs - outputs.mean(0)).square().mean()


def broken_loss_module_of_an_array() -> None:
    spread_of = Spread()

    def loss_of(model, outputs, images, labels):
        some = torch.from_numpy(outputs.detach().numpy()[:4])
        return functional.cross_entropy(outputs, labels) + 0.1 * spread_of(some)

    train(loss_of)


def healthy_targets_of_an_array() -> None:
    """The predictions choose what the targets of the next term are."""

    def loss_of(model, outputs, images, labels):
        nearest = np.round(outputs.detach().numpy())
        commitment = (outputs - torch.from_numpy(nearest)).square().mean()
        return functional.cross_entropy(outputs, labels) + 0.1 * commitment

    train(loss_of)


def healthy_weight_of_an_array() -> None:
    def loss_of(model, outputs, images, labels):
        doubts = torch.from_numpy(1 - outputs.detach().softmax(1).numpy().max(1))
        losses = functional.cross_entropy(outputs, labels, reduction="none")
        return (losses * doubts).mean() + losses.mean()

    train(loss_of)


def healthy_weight_of_numpy() -> None:
    def loss_of(model, outputs, images, labels):
        return functional.cross_entropy(outputs, labels) * (1 + 0.1 * spread(outputs))

    train(loss_of)


def healthy_constant_beside_numpy() -> None:
    def loss_of(model, outputs, images, labels):
        assert spread(outputs) >= 0
        return functional.cross_entropy(outputs, labels) + 0.5

    train(loss_of)


def healthy_reward_of_numpy() -> None:
    """An error of what the model expects from a reward that NumPy has computed."""

    def loss_of(model, outputs, images, labels):
        rewards = float(spread(outputs))
        return (outputs[:, 0].mean() - rewards).square()

    train(loss_of)


def healthy_penalty_of_a_gradient() -> None:
    def loss_of(model, outputs, images, labels):
        images = images.clone().requires_grad_()
        found = functional.cross_entropy(model(images), labels)
        (slope,) = torch.autograd.grad(found, images, create_graph=True)
        return found + 0.1 * slope.square().sum()

    train(loss_of)


def curvature(model, points, *, create_graph: bool) -> torch.Tensor:
    """Return how far a model is from a law for its second derivative at some points."""
    points = points.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(points).sum(), points, create_graph=True)
    (bend,) = torch.autograd.grad(slope.square().sum(), points, create_graph=create_graph)
    return (bend + points.sin()).square().mean()


def train_by_law(*, create_graph: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    points = torch.linspace(0, 1, 8)[:, None]
    for _ in range(4):
        optimizer.zero_grad()
        law = curvature(model, points, create_graph=create_graph)
        (functional.mse_loss(model(points), points) + 0.1 * law).backward()
        optimizer.step()


def broken_law_of_a_second_derivative() -> None:
    """The points require gradients, and so does the term, but no parameter gets one from it."""
    train_by_law(create_graph=False)


def healthy_law_of_a_second_derivative() -> None:
    train_by_law(create_graph=True)


def healthy_perturbation_that_is_learned() -> None:
    """A term of a tensor that is trained without being a parameter of the model."""
    model = classifier()
    shift = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), shift], lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images + shift), labels)
        (loss + 0.1 * (shift - 1).square().sum()).backward()
        optimizer.step()


def healthy_weight_that_is_detached() -> None:
    def loss_of(model, outputs, images, labels):
        loss = functional.cross_entropy(outputs, labels)
        spread = outputs.var()
        return loss + spread * (loss / spread).detach()

    train(loss_of)


def healthy_value_of_another_loss() -> None:
    """The value that is logged is that of one loss, and the gradient that of another one."""

    def loss_of(model, outputs, images, labels):
        loss = functional.cross_entropy(outputs, labels)
        errors = (outputs.argmax(1) != labels).float().mean()
        return loss + (errors - loss).detach()

    train(loss_of)


def healthy_flooding() -> None:
    def loss_of(model, outputs, images, labels):
        return (functional.cross_entropy(outputs, labels) - 0.1).abs() + 0.1

    train(loss_of)


def healthy_baseline() -> None:
    """A policy gradient, whose baseline is a number."""

    def loss_of(model, outputs, images, labels):
        chosen = outputs.log_softmax(1)[torch.arange(8), labels]
        rewards = images[:, 0]
        return -(chosen * (rewards - rewards.mean().item())).mean()

    train(loss_of)


def healthy_constant_of_a_likelihood() -> None:
    def loss_of(model, outputs, images, labels):
        spread = torch.tensor(0.5)
        error = functional.mse_loss(outputs, functional.one_hot(labels, 3).float())
        return error / (2 * spread**2) + spread.log()

    train(loss_of)


def train_two(loss_of) -> None:
    """Train two models in turn; the loss of the second one is a plain one."""
    first, second = classifier(), classifier()
    one = torch.optim.SGD(first.parameters(), lr=0.05)
    two = torch.optim.SGD(second.parameters(), lr=0.05)
    for images, labels in batches(8):
        one.zero_grad()
        loss_of(first(images), second(images), labels).backward()
        one.step()
        two.zero_grad()
        functional.cross_entropy(second(images), labels).backward()
        two.step()


def broken_number_in_another_loss_than_the_last() -> None:
    def loss_of(outputs, others, labels):
        spread = outputs.square().mean().item()
        return functional.cross_entropy(outputs, labels) + 0.1 * spread

    train_two(loss_of)


def healthy_numbers_that_are_printed() -> None:
    def loss_of(outputs, others, labels):
        spread = outputs.square().mean()
        assert spread.item() >= 0
        return functional.cross_entropy(outputs, labels) + 0.1 * spread + 0.5

    train_two(loss_of)


def healthy_number_of_a_loss_with_a_backward_of_its_own() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(8):
        optimizer.zero_grad()
        outputs = model(images)
        penalty = 0.1 * outputs.square().mean()
        penalty.backward(retain_graph=True)
        loss = functional.cross_entropy(outputs, labels) + penalty.item()
        loss.backward()
        optimizer.step()
        head = functional.cross_entropy(model(images), labels)
        head.backward()


def healthy_weight_of_a_term() -> None:
    def loss_of(outputs, others, labels):
        loss = functional.cross_entropy(outputs, labels)
        return loss + outputs.square().mean() * (0.1 / loss.item())

    train_two(loss_of)


def share(outputs: torch.Tensor, labels: torch.Tensor, rounding) -> torch.Tensor:
    """The share of the classes that are told wrongly, by rounded probabilities."""
    chosen = rounding(outputs.softmax(1))
    return 1 - (chosen * functional.one_hot(labels, 3)).sum(1).mean()


def broken_overlap_of_rounded_probabilities() -> None:
    def loss_of(model, outputs, images, labels):
        return functional.cross_entropy(outputs, labels) + share(outputs, labels, torch.round)

    train(loss_of)


class Straight(torch.autograd.Function):
    """Rounds, and passes gradients on."""

    @staticmethod
    def forward(ctx, values):
        return values.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def healthy_rounding_with_gradients() -> None:
    def loss_of(model, outputs, images, labels):
        first = share(outputs, labels, Straight.apply)
        second = share(outputs, labels, lambda each: each + (each.round() - each).detach())
        return functional.cross_entropy(outputs, labels) + first + second

    train(loss_of)


def train_against(*, detaches: bool, adversarial: bool = True, joint: bool = False) -> None:
    """Train a generator and a network that scores its samples.

    Args:
        detaches: Whether the scores in the generator's loss are those of detached samples.
        adversarial: Whether the generator's loss contains them.
        joint: Whether both losses have one backward pass.
    """
    torch.manual_seed(0)
    generator, scorer = (torch.nn.Sequential(torch.nn.Linear(3, 3)) for _ in range(2))
    head = torch.nn.Linear(3, 1)
    scorer.append(torch.nn.LeakyReLU(0.2)).append(head)
    ours = torch.optim.Adam(generator.parameters(), lr=1e-3)
    theirs = torch.optim.Adam(scorer.parameters(), lr=1e-3)

    def squares(scores, label):
        return (scores - label).square().mean()

    for _ in range(8):
        noise, data = torch.randn(16, 3), torch.randn(16, 3) + 2
        samples = generator(noise)
        loss = functional.l1_loss(samples.mean(0), data.mean(0))
        if adversarial:
            loss = loss + squares(scorer(samples.detach() if detaches else samples), 1)
        ours.zero_grad()
        if not joint:
            loss.backward()
            ours.step()
        theirs.zero_grad()
        own = squares(scorer(data), 1) + squares(scorer(samples.detach()), 0)
        (own + loss if joint else own).backward()
        if joint:
            ours.step()
        theirs.step()


def broken_scores_of_detached_samples() -> None:
    train_against(detaches=True)


def healthy_scores_of_samples() -> None:
    train_against(detaches=False)


def healthy_network_beside_a_generator() -> None:
    """A network learns to tell samples apart, but the generator does not learn from it."""
    train_against(detaches=True, adversarial=False)
    train_against(detaches=True, adversarial=False, joint=True)


def distil(divergence) -> None:
    """Train a model with the divergence of its logits from those of a teacher."""
    torch.manual_seed(0)
    teacher = torch.nn.Linear(4, 3).requires_grad_(requires_grad=False)
    student = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    for _ in range(4):
        inputs, labels = torch.randn(8, 4), torch.randint(3, (8,))
        with torch.no_grad():
            wanted = teacher(inputs)
        given = student(inputs)
        optimizer.zero_grad()
        (functional.cross_entropy(given, labels) + 2 * divergence(given, wanted)).backward()
        optimizer.step()


def broken_divergence_of_the_teacher_from_itself() -> None:
    def divergence(given, wanted):
        return functional.kl_div(wanted.log_softmax(1), wanted.softmax(1), reduction="batchmean")

    distil(divergence)


def broken_distance_of_the_teacher_from_itself() -> None:
    distil(lambda given, wanted: functional.mse_loss(wanted.tanh(), wanted.tanh()))


def broken_distance_written_out() -> None:
    distil(lambda given, wanted: (wanted.softmax(1) - wanted.softmax(1)).square().sum(1).mean())


def healthy_divergence_from_the_teacher() -> None:
    def divergence(given, wanted):
        return functional.kl_div(given.log_softmax(1), wanted.softmax(1), reduction="batchmean")

    distil(divergence)


def healthy_constant_of_a_divergence() -> None:
    """A cross entropy minus the entropy of the teacher, which makes a divergence of it."""

    def divergence(given, wanted):
        entropy = -(wanted.softmax(1) * wanted.log_softmax(1)).sum(1).mean()
        return functional.cross_entropy(given, wanted.softmax(1)) - entropy

    distil(divergence)


def healthy_distance_of_two_teachers() -> None:
    """A constant, by which the loss tells how far a teacher is from another one."""
    distil(
        lambda given, wanted: (
            functional.mse_loss(given, wanted) - functional.mse_loss(wanted.tanh(), wanted)
        )
    )


def healthy_distance_of_frozen_weights() -> None:
    """Frozen parameters stay where they were, and their distance from there is a term like all."""
    model = classifier()
    model[0].weight.requires_grad_(requires_grad=False)
    start = [each.detach().clone() for each in model.parameters()]
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        for each, its in zip(model.parameters(), start, strict=True):
            loss = loss + 0.1 * functional.mse_loss(each, its)
        loss.backward()
        optimizer.step()


def train_heads(choose, *, steps: int = 12) -> None:
    """Train a model with a loss for each of two parts of its results.

    Args:
        choose: Returns that of which backward is called, of the two losses, their sum, and the
            number of the step.
        steps: Number of steps.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shown = 0.0
    for number in range(steps):
        inputs = torch.randn(8, 3)
        place, size = model(inputs).split([2, 2], 1)
        terms = [functional.mse_loss(place, inputs[:, :2]), size.square().mean()]
        total = sum(0.5 * each for each in terms)
        shown += total.item()
        optimizer.zero_grad()
        choose(*terms, total, number).backward()
        optimizer.step()
    assert shown > 0


def broken_sum_that_is_only_shown() -> None:
    train_heads(lambda first, second, total, number: first)


def healthy_sum_with_other_weights() -> None:
    train_heads(lambda first, second, total, number: first + 0.1 * second)


def healthy_parts_of_a_sum_in_turn() -> None:
    train_heads(lambda first, second, total, number: (first, second)[number % 2])


def healthy_part_of_a_sum_at_first() -> None:
    train_heads(lambda first, second, total, number: first if number < 8 else total, steps=16)


def healthy_sum_with_the_decay_of_the_optimizer() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-2)
    for images, labels in batches(12):
        loss = functional.cross_entropy(model(images), labels)
        shown = loss + 5e-3 * sum(each.square().sum() for each in model.parameters())
        assert shown.item() > 0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
