"""A loader drops its only batch, because it is not full."""

from torch.utils.data import DataLoader, Subset

from doctor.programs.data.samples import Training, data

CODE = "LOADER_WITHOUT_BATCHES"


def broken() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=64, drop_last=True)
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)


def train(size: int, *, drops: bool, count: int = 48) -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    part = Subset(data(), range(count))
    few = DataLoader(part, batch_size=size, drop_last=drops)
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)
        training.model.eval()
        for inputs, _ in few:
            training.model(inputs).detach()
        training.model.train()


def broken_in_an_evaluation() -> None:
    train(64, drops=True)


def mended() -> None:
    train(64, drops=False)


def healthy_last_batch_that_is_dropped() -> None:
    train(20, drops=True)


def healthy_batch_of_all_samples() -> None:
    train(48, drops=True)


def healthy_data_set_without_samples() -> None:
    train(8, drops=True, count=0)
