"""The epochs share one iterator of the loader, so that only the first has batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from doctor.programs.data.samples import Training, data

CODE = "ITERATOR_USED_UP"


def broken() -> None:
    training = Training()
    batches = iter(DataLoader(data(), batch_size=8))
    for _ in range(3):
        for inputs, targets in batches:
            training.step(inputs, targets)


def mended() -> None:
    training = Training()
    batches = DataLoader(data(), batch_size=8)
    for _ in range(3):
        for inputs, targets in batches:
            training.step(inputs, targets)


def broken_beside_an_evaluation() -> None:
    training = Training()
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    iterator = enumerate(iter(loader))
    for _ in range(4):
        for _, (inputs, targets) in iterator:
            training.step(inputs, targets)
        training.evaluate(loader)


def broken_generator() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    batches = (pair for pair in [*loader])
    for _ in range(3):
        for inputs, targets in batches:
            training.step(inputs, targets)


def broken_generator_beside_an_evaluation() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    batches = (pair for pair in [*loader])
    for _epoch in [*range(4)]:
        for _, (inputs, targets) in enumerate(batches):
            training.step(inputs, targets)
        training.evaluate([*loader])


def healthy_generator_in_each_epoch() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    for _ in range(3):
        batches = (pair for pair in [*loader])
        for inputs, targets in batches:
            training.step(inputs, targets)


def healthy_one_pass_of_a_generator() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    batches = (pair for pair in [*loader])
    for _ in range(1):
        for inputs, targets in batches:
            training.step(inputs, targets)


def healthy_generator_without_end() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    batches = (pair for _ in iter(int, 1) for pair in [*loader])
    for _ in range(3):
        for place, (inputs, targets) in enumerate(batches):
            training.step(inputs, targets)
            if place == 7:
                break


def healthy_iterator_that_begins_again_at_its_end() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    batches = iter(loader)
    for _ in range(20):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        training.step(*batch)


def healthy_one_epoch_of_an_iterator() -> None:
    training = Training()
    for inputs, targets in iter(DataLoader(data(), batch_size=8)):
        training.step(inputs, targets)


def healthy_pairs_of_two_loaders() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    short = DataLoader(data(16), batch_size=8, shuffle=True)
    for _ in range(3):
        for (inputs, targets), _ in zip(loader, short, strict=False):
            training.step(inputs, targets)


def healthy_stream_without_end() -> None:
    def stream(loader: DataLoader):
        while True:
            yield from loader

    training, batches = Training(), stream(DataLoader(data(), batch_size=8))
    for _ in range(20):
        training.step(*next(batches))


class _Fit:
    """A trainer that keeps its batches."""

    def __init__(self, batches, epochs: int = 3) -> None:
        self.batches, self.epochs, self.training = batches, epochs, Training()

    def run(self) -> None:
        for _ in range(self.epochs):
            self.epoch()

    def epoch(self) -> list:
        return [self.training.step(inputs, targets) for inputs, targets in self.batches]


def broken_generator_of_a_trainer() -> None:
    _Fit(pair for pair in [*DataLoader(data(), batch_size=8)]).run()


def broken_pairs_of_lists() -> None:
    inputs, targets = zip(*DataLoader(data(), batch_size=8), strict=True)
    _Fit(zip(inputs, targets, strict=True)).run()


def _epoch(training: Training, batches) -> None:
    for inputs, targets in batches:
        training.step(inputs, targets)


def broken_generator_passed_on() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    batches = map(tuple, [*loader])
    for _ in range(3):
        _epoch(training, batches)


def healthy_generator_passed_on_once() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    for _ in range(3):
        _epoch(training, (pair for pair in [*loader]))
        break


def healthy_list_of_a_trainer() -> None:
    _Fit([*DataLoader(data(), batch_size=8)]).run()


def healthy_one_epoch_of_a_trainer() -> None:
    _Fit((pair for pair in [*DataLoader(data(), batch_size=8)]), epochs=1).run()


class _Refilled:
    """A trainer that makes its batches anew."""

    def __init__(self) -> None:
        self.pairs, self.training = iter(()), Training()
        for _ in range(3):
            self.refill()
            self.epoch()

    def refill(self) -> None:
        self.pairs = (pair for pair in [*DataLoader(data(), batch_size=8)])

    def epoch(self) -> None:
        for inputs, targets in self.pairs:
            self.training.step(inputs, targets)


def healthy_generator_made_anew_in_a_method() -> None:
    _Refilled()


def train_with(penalty_of, begin=lambda parameters: parameters) -> None:
    """Train with a penalty; `begin` returns from which parameters it is computed."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    kept = begin(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in [*DataLoader(data(), batch_size=4)] * 3:
        optimizer.zero_grad()
        penalty = penalty_of(kept)
        (nn.functional.cross_entropy(model(inputs), targets) + 0.1 * penalty).backward()
        optimizer.step()


class _Penalty:
    def __init__(self, parameters) -> None:
        self.matrices = parameters

    def __call__(self) -> torch.Tensor:
        return sum((each.square().sum() for each in self.matrices), torch.zeros(())) * 2.0


def broken_penalty_of_a_generator() -> None:
    train_with(lambda penalty: penalty(), lambda kept: _Penalty(each for each in kept))


def healthy_penalty_of_a_list() -> None:
    train_with(lambda penalty: penalty(), lambda kept: _Penalty([*kept]))


def broken_average_of_parameters_that_the_optimizer_has_read() -> None:
    torch.manual_seed(0)
    model, average = nn.Linear(6, 3), nn.Linear(6, 3)
    parameters, averages = model.parameters(), [*average.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for inputs, targets in [*DataLoader(data(), batch_size=4)] * 3:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(averages, parameters, strict=False):
                mine.lerp_(its, 0.1)


def _norm(parameters) -> torch.Tensor:
    norms = [each.norm() for each in parameters]
    return torch.stack(norms).norm()


def healthy_generator_that_is_passed_on() -> None:
    """The function runs over another generator each time."""
    train_with(lambda kept: _norm(each for each in kept), lambda kept: [*kept])


def healthy_generator_of_each_call() -> None:
    def penalty_of(kept) -> torch.Tensor:
        matrices = (each for each in kept if each.ndim > 1)
        return 2.0 * sum(each.square().sum() for each in matrices)

    train_with(penalty_of, lambda kept: [*kept])


class _Once:
    """Reads its parameters in the first call only."""

    def __init__(self, parameters) -> None:
        self.parameters, self.first = parameters, None

    def __call__(self) -> torch.Tensor:
        if self.first is None:
            self.first = torch.stack([each.detach().norm() for each in self.parameters])
        return self.first.sum() * 2.0


def healthy_generator_that_is_read_once() -> None:
    train_with(lambda once: once(), lambda kept: _Once(each for each in kept))


def healthy_generator_before_the_loop() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    parameters = model.parameters()
    with torch.no_grad():
        for each in parameters:
            each.mul_(0.5)
    training = Training()
    for inputs, targets in [*DataLoader(data(), batch_size=4)] * 3:
        training.step(inputs, targets)
        assert model(inputs).isfinite().all()
