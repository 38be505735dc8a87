"""The epochs share one iterator of the loader, so that only the first has batches."""

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
