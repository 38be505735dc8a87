"""The data are split for an evaluation, but the training goes on using all of them."""

import torch
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset, random_split

from doctor.programs.data.samples import COUNT, Training, data, samples

CODE = "EVALUATED_ON_TRAINING_SAMPLES"
EPOCHS = 3


def load(train_set, *test_sets) -> None:
    training, loader = Training(), DataLoader(train_set, batch_size=8, shuffle=True)
    tests = [DataLoader(each, batch_size=8) for each in test_sets]
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            training.step(inputs, targets)
        for test in tests:
            training.evaluate(test)


def broken() -> None:
    whole = data()
    _, test_set = random_split(whole, [32, 16], torch.Generator().manual_seed(0))
    load(whole, test_set)


def mended() -> None:
    train_set, test_set = random_split(data(), [32, 16], torch.Generator().manual_seed(0))
    load(train_set, test_set)


def broken_by_parts_that_overlap() -> None:
    whole = data()
    load(Subset(whole, range(40)), Subset(whole, range(24, COUNT)))


def index(train, test) -> None:
    inputs, targets = samples()
    mine, wanted = inputs[train], targets[train]
    training = Training()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(mine)).split(8):
            training.step(mine[batch], wanted[batch])
        training.evaluate([(inputs[test], targets[test])])


def broken_in_slices() -> None:
    index(slice(0, 40), slice(24, COUNT))


def broken_by_two_permutations() -> None:
    index(torch.randperm(COUNT)[:32], torch.randperm(COUNT)[32:])


def healthy_slices() -> None:
    index(slice(0, 32), slice(32, COUNT))


def healthy_parts_of_one_permutation() -> None:
    order = torch.randperm(COUNT)
    index(order[:32], order[32:])


def healthy_accuracy_of_the_training() -> None:
    whole = data()
    load(whole, whole)


def healthy_part_of_the_training_beside_a_test() -> None:
    whole = data()
    train_set = Subset(whole, range(32))
    load(train_set, Subset(train_set, range(16)), Subset(whole, range(32, COUNT)))


def healthy_folds() -> None:
    """Each fold has a model of its own, which is tested on the samples that others train on."""
    whole = data()
    for fold in range(3):
        test = range(16 * fold, 16 * fold + 16)
        load(
            Subset(whole, [each for each in range(COUNT) if each not in test]), Subset(whole, test)
        )


def healthy_evaluation_on_all_samples() -> None:
    whole = data()
    load(Subset(whole, range(32)), whole)


def arrays(*places: slice) -> list[TensorDataset]:
    """Return data sets of parts of one array, which share no memory."""
    inputs, targets = (each.numpy() for each in samples())
    return [TensorDataset(torch.tensor(inputs[at]), torch.tensor(targets[at])) for at in places]


def broken_in_two_data_sets_of_one_array() -> None:
    load(*arrays(slice(0, 40), slice(24, COUNT)))


def healthy_two_parts_of_one_array() -> None:
    """The accuracy on the training data beside that on the test data."""
    train_set, test_set = arrays(slice(0, 32), slice(32, COUNT))
    load(train_set, train_set, test_set)


def healthy_policy() -> None:
    """A policy acts on each state once, and trains on a part of the states later."""
    states = [row[None] for row in samples()[0]]
    training = Training()
    for step in range(8, COUNT):
        with torch.no_grad():
            training.model(states[step])
        batch = torch.cat([states[each] for each in torch.randint(step, (8,)).tolist()])
        training.step(batch, batch.argmax(1) % 3)


def healthy_frozen_part_in_the_training() -> None:
    """The first steps train the head alone; the evaluation has samples of its own."""
    torch.manual_seed(0)
    data, labels = torch.randn(200, 6), torch.randint(3, (200,))
    body, head = torch.nn.Linear(6, 16), torch.nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    for step in range(24):
        rows = torch.randint(0, 160, (32,))
        body.requires_grad_(step % 2 == 0)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(body(data[rows])), labels[rows]).backward()
        optimizer.step()


def sampled(train: range, test: range) -> None:
    """Two loaders of one data set, with samplers of their own."""
    training, whole = Training(), data()
    loaders = [
        DataLoader(whole, batch_size=8, sampler=SubsetRandomSampler(each)) for each in (train, test)
    ]
    for _ in range(3):
        for inputs, targets in loaders[0]:
            training.step(inputs, targets)
        training.evaluate(loaders[1])


def broken_by_samplers() -> None:
    sampled(range(COUNT), range(32, COUNT))


def healthy_samplers() -> None:
    sampled(range(32), range(32, COUNT))


def distil(taught: slice, tested: slice) -> None:
    """Train a teacher, and then a student that learns from what the teacher says."""
    inputs, targets = samples()
    teacher, student = Training(), Training()
    for training in (teacher, student):
        for _ in range(EPOCHS):
            rows = torch.randperm(40)[:24]
            training.step(inputs[rows], targets[rows])
            if training is student:
                with torch.no_grad():
                    soft = teacher.model(inputs[rows]).argmax(1)
                training.step(inputs[rows], soft)
    teacher.evaluate([(inputs[tested], targets[tested])])
    student.evaluate([(inputs[tested], targets[tested])])


def healthy_teacher_of_a_student() -> None:
    distil(slice(0, 40), slice(40, COUNT))


def of_arrays(train, test, *, renewed: bool = False, whole: bool = False) -> None:
    """The loop takes rows of arrays, and evaluates on more rows at once than it trains on.

    Args:
        train: The rows of the training.
        test: Those of the evaluation.
        renewed: Whether each evaluation has other rows, as states of an environment.
        whole: Whether the evaluation has all rows.
    """
    inputs, targets = samples(200)
    inputs, targets = inputs.numpy(), targets.numpy()
    training = Training()
    for _ in range(EPOCHS):
        for at in range(0, len(train), 20):
            rows = train[at : at + 20].numpy()
            training.step(torch.from_numpy(inputs[rows]), torch.from_numpy(targets[rows]))
        rows = test[torch.randperm(len(test))[:70]] if renewed else test
        rows = torch.randperm(200) if whole else rows
        training.evaluate([(torch.from_numpy(inputs[rows]), torch.from_numpy(targets[rows]))])


def broken_by_two_permutations_of_arrays() -> None:
    of_arrays(torch.randperm(200)[:120], torch.randperm(200)[120:])


def healthy_parts_of_arrays() -> None:
    order = torch.randperm(200)
    of_arrays(order[:120], order[120:])


def healthy_states_that_are_drawn_anew() -> None:
    of_arrays(torch.randperm(200)[:120], torch.randperm(200)[90:], renewed=True)


def healthy_evaluation_on_all_rows_of_arrays() -> None:
    of_arrays(torch.randperm(200)[:120], torch.arange(200), whole=True)
