"""After each epoch, the model is evaluated without `eval()`."""

import copy

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "EVALUATION_IN_TRAINING_MODE"


def train(assess, model=None, *, epochs: int = 3, step_with=lambda model, images: None) -> None:
    model = classifier() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        model.train()
        for images, labels in batches(5, seed=epoch):
            step_with(model, images)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        assess(model)


def run(model: nn.Module, count: int = 4) -> None:
    with torch.no_grad():
        for images, _ in batches(count, seed=9):
            model(images)


def broken() -> None:
    train(run)


def mended() -> None:
    def assess(model) -> None:
        model.eval()
        run(model)

    train(assess)


def broken_with_dropout() -> None:
    train(run, nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3)))


def scored(model: nn.Module, count: int = 4) -> list[float]:
    """Compute losses without `torch.no_grad()`."""
    return [
        nn.functional.cross_entropy(model(images), labels).item()
        for images, labels in batches(count, seed=9)
    ]


def broken_with_gradients() -> None:
    train(scored)


def healthy_evaluation_with_gradients() -> None:
    def assess(model) -> None:
        model.eval()
        scored(model)

    train(assess)


def healthy_first_calls_with_gradients() -> None:
    model = classifier()
    scored(model)
    train(lambda model: None, model)


def healthy_calls_with_gradients_before_each_step() -> None:
    """As for the candidates of a search, of which the best one is trained."""

    def search(model, images) -> None:
        for _ in range(3):
            model(images + 0.1)

    train(lambda model: None, step_with=search)


def healthy_loss_that_leaves_batches_out() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(20)):
        loss = nn.functional.cross_entropy(model(images), labels)
        if number % 7 in {4, 5}:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_without_running_statistics() -> None:
    train(run, nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 3)))


def healthy_targets_by_the_model_itself() -> None:
    def targets(model, images) -> None:
        with torch.no_grad():
            model(images + 0.1)

    train(lambda model: None, step_with=targets)


def healthy_samples_with_dropout_alone() -> None:
    def assess(model) -> None:
        model.eval()
        model[2].train()
        run(model)

    train(
        assess,
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3)),
    )


def healthy_statistics_of_the_last_weights() -> None:
    def assess(model) -> None:
        other = copy.deepcopy(model)
        run(other)  # the statistics of a copy, for its evaluation
        other.eval()
        run(other)

    train(assess)


def healthy_statistics_at_the_end() -> None:
    model = classifier()
    train(lambda model: None, model)
    run(model)


def healthy_statistics_for_an_evaluation() -> None:
    def assess(model) -> None:
        run(model)
        model.eval()
        run(model)

    train(assess)


def report(model: nn.Module) -> None:
    with torch.no_grad():
        model(torch.zeros(4, 6))


def broken_by_a_report_of_shapes() -> None:
    def assess(model) -> None:
        report(model)
        model.eval()
        run(model)

    train(assess)


def distil(prepare, *, moves: bool = False) -> None:
    """Train a student on the outputs of a trained teacher, after `prepare(teacher)`."""
    teacher = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    train(lambda model: None, teacher, epochs=1)
    prepare(teacher.requires_grad_(requires_grad=False))
    student = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    for images, _ in batches(6):
        with torch.no_grad():
            targets = teacher(images).softmax(1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(student(images), targets).backward()
        optimizer.step()
        if moves:
            with torch.no_grad():
                for mine, its in zip(teacher.parameters(), student.parameters(), strict=True):
                    mine.lerp_(its, 0.01)


def broken_teacher() -> None:
    distil(lambda teacher: None)


def healthy_teacher() -> None:
    distil(lambda teacher: teacher.eval())


def healthy_teacher_that_follows_the_student() -> None:
    distil(lambda teacher: None, moves=True)


def healthy_samples_for_a_critic() -> None:
    generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    for images, _ in batches(6):
        for _ in range(3):
            with torch.no_grad():
                samples = generator(torch.randn(len(images), 4))
            of_critic.zero_grad()
            (critic(samples) - critic(images)).mean().backward()
            of_critic.step()
        critic.requires_grad_(requires_grad=False)
        of_generator.zero_grad()
        critic(generator(torch.randn(len(images), 4))).mean().neg().backward()
        of_generator.step()
        critic.requires_grad_(requires_grad=True)


def train_with_average(assess, step_with=lambda average, images: None) -> None:
    """Keep an average of the model; `assess(model, average)` evaluates after each epoch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    average = torch.optim.swa_utils.AveragedModel(model)

    def after_step(model, images) -> None:
        average.update_parameters(model)
        step_with(average, images)

    train(lambda its: assess(its, average), model, step_with=after_step)


def broken_in_an_average_of_the_model() -> None:
    def assess(model, average) -> None:
        model.eval()
        run(average)

    train_with_average(assess)


def healthy_average_in_evaluation_mode() -> None:
    def assess(model, average) -> None:
        average.eval()
        run(average)

    train_with_average(assess)


def healthy_average_that_is_a_teacher() -> None:
    """A mean teacher with dropout, called in each step; only the model is evaluated."""

    def assess(model, average) -> None:
        model.eval()
        run(model)

    train_with_average(assess, lambda average, images: run(average, 1))


def healthy_average_whose_training_mode_is_set() -> None:
    """The spread of its results is wanted."""

    def assess(model, average) -> None:
        model.eval()
        average.train()
        run(average)

    train_with_average(assess)
