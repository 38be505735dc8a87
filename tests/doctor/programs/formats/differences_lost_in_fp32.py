"""Times in seconds since 1970 become fp32 before their pauses are computed."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from doctor.loops import batches

CODE = "DIFFERENCES_LOST_IN_FP32"
START = 1_718_000_000


def train(pauses_of, *, model=None, count: int = 6) -> None:
    torch.manual_seed(0)
    model = model or nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _, labels in batches(count):
        times = START + torch.randint(1, 60, (8, 7), generator=generator).cumsum(1)
        optimizer.zero_grad()
        functional.cross_entropy(model(pauses_of(times)), labels).backward()
        optimizer.step()


def gaps(times: torch.Tensor) -> torch.Tensor:
    return (times[:, 1:] - times[:, :-1]).float() / 60


def broken() -> None:
    def pauses(times):
        stamps = times.float()
        return (stamps[:, 1:] - stamps[:, :-1]) / 60

    train(pauses)


def mended() -> None:
    train(gaps)


def broken_in_diff() -> None:
    train(lambda times: times.to(torch.float32).diff(dim=1).div(60))


def broken_in_two_casts() -> None:
    def pauses(times):
        after, before = times[:, 1:].type(torch.float32), times[:, :-1].type(torch.float32)
        return torch.sub(after, before) / 60

    train(pauses)


def broken_by_a_quotient() -> None:
    """Minutes, which are fp32 as well."""

    def pauses(times):
        minutes = times / 60
        return minutes[:, 1:] - minutes[:, :-1]

    train(pauses)


def broken_by_a_tensor_of_numbers() -> None:
    def pauses(times):
        stamps = torch.tensor(times.numpy(), dtype=torch.float32)
        return (stamps[:, 1:] - stamps[:, :1]) / 60

    train(pauses)


def broken_equality_of_numbers_of_users() -> None:
    def pauses(times):
        users = (times - START + 2**28).float()
        same = users[:, :6] == users[:, 1:]
        return gaps(times) + same

    train(pauses)


class Pauses(nn.Module):
    """Computes the pauses inside of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, times):
        stamps = times.float()
        return self.head((stamps[:, 1:] - stamps[:, :-1]) / 60)


def broken_in_a_module() -> None:
    train(lambda times: times, model=Pauses())


def healthy_time_since_the_start() -> None:
    """Over days, steps of two minutes are small."""

    def pauses(times):
        days = (times + 86400 * times.remainder(9).cumsum(1)).float()
        return (days[:, 1:] - days[:, :1]) / 864000

    train(pauses)


def healthy_fp64() -> None:
    def pauses(times):
        stamps = times.double()
        return ((stamps[:, 1:] - stamps[:, :-1]) / 60).float()

    train(pauses)


def healthy_small_numbers() -> None:
    def pauses(times):
        seconds = (times - START).float()
        return (seconds[:, 1:] - seconds[:, :-1]) / 60

    train(pauses)


def healthy_numbers_that_are_hashed() -> None:
    def pauses(times):
        return (times * 2654435761 % 2**31).float()[:, 1:] / 2**31

    train(pauses)


def healthy_numbers_that_are_printed() -> None:
    def pauses(times):
        str(times.float())
        return gaps(times)

    train(pauses)


def healthy_normalised_times() -> None:
    """A trend over years."""

    def pauses(times):
        years = (times + 31_536_000 * torch.arange(7)).float()[:, 1:]
        return (years - years.mean()) / years.std()

    train(pauses)


def healthy_multiples_that_fp32_represents() -> None:
    def pauses(times):
        stamps = ((times - START) * 4096).float()
        return (stamps[:, 1:] - stamps[:, :-1]) / 4096 / 60

    train(pauses)


def all_times(longest: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return START + torch.randint(1, longest, (48, 7), generator=generator).cumsum(1)


def broken_in_rows_of_rounded_numbers() -> None:
    stamps = all_times(60).float()

    def pauses(times):
        rows = stamps[(times[:, 0] - START) % 48]
        return rows.diff() / 60

    train(pauses)


class Gaps(nn.Linear):
    """Computes the pauses of times that are already rounded."""

    def forward(self, stamps):
        return super().forward((stamps[:, 1:] - stamps[:, :-1]) / 60)


def train_on(data) -> None:
    torch.manual_seed(0)
    model = Gaps(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for stamps, labels in DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(stamps), labels).backward()
        optimizer.step()


def broken_in_batches_of_a_loader() -> None:
    data = TensorDataset(all_times(60).float(), torch.arange(48) % 3)
    train_on(Subset(data, range(40)))


class Rows(Dataset):
    """Casts each row when it is read.

    Args:
        times: The rows, before the cast.
    """

    def __init__(self, times) -> None:
        self.times = times

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index):
        return torch.tensor(self.times[index].tolist(), dtype=torch.float32), index % 3


def broken_in_rows_that_a_data_set_casts() -> None:
    train_on(Rows(all_times(60)))


def healthy_rows_with_long_pauses() -> None:
    train_on(Rows(all_times(90000)))


def healthy_rows_of_counts_that_seldom_change() -> None:
    counts = START + (all_times(60) % 10 == 0).cumsum(1) * 10**7
    train_on(Rows(counts))


def healthy_batches_with_long_pauses() -> None:
    train_on(TensorDataset(all_times(90000).float() / 1000, torch.arange(48) % 3))


def healthy_rows_of_whole_numbers() -> None:
    times = all_times(60)
    train(lambda given: gaps(times[(given[:, 0] - START) % 48]))


def in_fractions(times, scale: float = 1.0):
    """Return times of fractions of a second, from a clock in fp64."""
    return times.double() * scale + 0.125 * (times % 7)


def broken_from_fp64() -> None:
    def pauses(times):
        stamps = in_fractions(times).float()
        return (stamps[:, 1:] - stamps[:, :-1]) / 60

    train(pauses)


def healthy_from_fp64_over_years() -> None:
    """The pauses are long, in comparison to the steps of fp32."""

    def pauses(times):
        stamps = in_fractions(1000 * (times - START)).float()
        return (stamps[:, 1:] - stamps[:, :-1]) / 60000

    train(pauses)


def healthy_from_fp64_that_is_not_subtracted() -> None:
    train(lambda times: (in_fractions(times).float() / START)[:, 1:])
