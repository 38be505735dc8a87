"""Sines of positions that are counted in bf16."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "POSITIONS_IN_HALF"
LENGTH = 600


def waves(positions: torch.Tensor) -> torch.Tensor:
    return torch.sin(positions[:, None] * torch.tensor([1.0, 0.1, 0.01], dtype=positions.dtype))


class Encoder(nn.Module):
    """Repeats its inputs over a long sequence, and appends waves of the positions.

    Args:
        dtype: Format of the positions.
    """

    def __init__(self, dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(9, 3)
        self.dtype = dtype

    def forward(self, images):
        positions = waves(torch.arange(LENGTH).to(self.dtype)).float()
        long = images[:, None].expand(-1, LENGTH, -1)
        return self.head(torch.cat([long, positions.expand(len(images), -1, -1)], -1)).mean(1)


def bf16_steps(model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(images)
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


def train(model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(Encoder(torch.bfloat16))


def mended() -> None:
    train(Encoder(torch.float32))


class Diffusion(nn.Module):
    def __init__(self, dtype) -> None:
        super().__init__()
        self.head, self.dtype = nn.Linear(9, 3), dtype

    def forward(self, images):
        times = torch.linspace(1, 999, len(images)).long()
        return self.head(torch.cat([images, waves(times.to(self.dtype)).float()], -1))


def of_a_table(dtype, kept: int = 400) -> None:
    """Train on waves of the times in a table of times and measurements."""
    generator = torch.Generator().manual_seed(1)
    table = torch.stack([torch.arange(kept).float(), torch.randn(kept, generator=generator)], 1)
    table = table.to(dtype)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        times, measured = table[torch.randint(0, kept, (8,), generator=generator)].unbind(1)
        optimizer.zero_grad()
        given = torch.cat([waves(times.float()), measured[:, None].float()], 1)
        model(given).square().mean().backward()
        optimizer.step()


def broken_column_of_times() -> None:
    of_a_table(torch.bfloat16)


def healthy_column_of_times_in_fp16() -> None:
    """fp16 represents whole numbers up to 2048."""
    of_a_table(torch.float16)


def healthy_column_of_few_times() -> None:
    of_a_table(torch.bfloat16, kept=200)


def broken_timesteps() -> None:
    train(Diffusion(torch.bfloat16))


class Rotary(nn.Module):
    """Multiplies positions by frequencies with the operator @, whose inputs autocast casts."""

    def __init__(self, *, cast: bool) -> None:
        super().__init__()
        self.head, self.cast = nn.Linear(9, 3), cast

    def forward(self, images):
        positions = torch.arange(LENGTH).float()[:, None]
        with torch.autocast("cpu", enabled=self.cast):
            angles = positions @ torch.tensor([[1.0, 0.1, 0.01]])
        long = images[:, None].expand(-1, LENGTH, -1)
        waves = angles.sin().float().expand(len(images), -1, -1)
        return self.head(torch.cat([long, waves], -1)).float().mean(1)


def broken_by_autocast() -> None:
    bf16_steps(Rotary(cast=True))


def healthy_without_autocast() -> None:
    bf16_steps(Rotary(cast=False))


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counted", torch.arange(3000.0))
        self.head = nn.Linear(6, 3)

    def forward(self, images):
        return self.head(images) + self.counted[:3].to(images.dtype)


def broken_buffer() -> None:
    model = Buffered()
    model.counted = model.counted.half()
    train(model)


def healthy_few_positions_in_half() -> None:
    model = Buffered()
    model.counted = model.counted[:1000].half()
    train(model)


def healthy_timesteps_in_fp32() -> None:
    train(Diffusion(torch.float32))


def healthy_labels_in_half() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(3):
        optimizer.zero_grad()
        targets = nn.functional.one_hot(labels, 3).half()
        nn.functional.binary_cross_entropy_with_logits(model(images), targets.float()).backward()
        optimizer.step()


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, images):
        pixels = torch.randint(0, 65_504, images.shape)
        return self.head(images + pixels.half() / 65_504)


def healthy_pixels_of_16_bits() -> None:
    train(Pixels())


class Outer(nn.Module):
    """Angles as a product of positions and frequencies, which autocast may round.

    Args:
        angles: Computes the angles of positions and frequencies.
        first: The first position.
    """

    def __init__(self, angles, first: int = 1024) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(6 + 8, 3)
        self.angles, self.first = angles, first
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(4) / 4))

    def forward(self, images):
        positions = torch.arange(self.first, 2 * self.first, dtype=torch.float32)
        angles = self.angles(positions, self.inv_freq).float()
        waves = torch.cat([angles.sin(), angles.cos()], -1)[: len(images)]
        return self.head(torch.cat([images, waves], -1))


def outer(positions, frequencies):
    return positions[:, None] @ frequencies[None]


def broken_by_autocast_in_a_product() -> None:
    bf16_steps(Outer(outer))


def broken_by_autocast_in_a_product_of_batches() -> None:
    bf16_steps(Outer(lambda p, f: (f[None, :, None] @ p[None, None, :]).transpose(1, 2)[0]))


def broken_by_autocast_in_a_linear_function() -> None:
    bf16_steps(Outer(lambda p, f: nn.functional.linear(p[:, None], f[:, None])))


def healthy_sum_that_autocast_does_not_cast() -> None:
    bf16_steps(Outer(lambda p, f: torch.einsum("i,j->ij", p, f)))


def broken_by_autocast_in_the_loop() -> None:
    model = nn.Linear(6 + 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    frequencies = 10000.0 ** (-torch.arange(4) / 4)
    for images, labels in batches(3):
        positions = torch.arange(1024, 2048, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            waves = outer(positions, frequencies).float().sin()[: len(images)]
            outputs = model(torch.cat([images, waves], -1))
        optimizer.zero_grad()
        nn.functional.cross_entropy(outputs.float(), labels).backward()
        optimizer.step()


def healthy_product_outside_autocast() -> None:
    def angles(positions, frequencies):
        with torch.autocast("cpu", enabled=False):
            return outer(positions, frequencies)

    bf16_steps(Outer(angles))


class Calendar(nn.Module):
    """Repeats its inputs for days in no order, with waves of their phases.

    Args:
        largest: The largest day.
        exact: Whether the phases are computed in fp32.
    """

    def __init__(self, largest: float, *, exact: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(9, 3)
        self.days = torch.rand(64, 1) * largest
        self.rates = torch.tensor([[0.9, 0.4, 0.02]])
        self.exact = exact

    def forward(self, images):
        if self.exact:
            with torch.autocast("cpu", enabled=False):
                phases = self.days @ self.rates
        else:
            phases = self.days @ self.rates
        long = images[:, None].expand(-1, 64, -1)
        waves = phases.float().sin().expand(len(images), -1, -1)
        return self.head(torch.cat([long, waves], -1)).mean(1)


def broken_phases_in_a_product() -> None:
    bf16_steps(Calendar(3000.0, exact=False))


def mended_phases_in_a_product() -> None:
    bf16_steps(Calendar(3000.0, exact=True))


def healthy_small_phases() -> None:
    bf16_steps(Calendar(6.0, exact=False))


def healthy_waves_of_whole_numbers() -> None:
    """bf16 represents whole numbers up to 256."""
    model = Calendar(3.0, exact=False)
    model.days = torch.arange(64.0)[torch.randperm(64), None]
    model.rates = torch.ones(1, 3)
    bf16_steps(model)


class Observed(nn.Module):
    """Counts positions by a running sum of a mask.

    Args:
        dtype: Format of the sum.
        length: Number of positions.
    """

    def __init__(self, dtype, length: int = LENGTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(9, 3)
        self.dtype, self.length = dtype, length

    def forward(self, images):
        mask = torch.ones(len(images), self.length, dtype=torch.bool)
        mask[:, 3] = False
        counted = mask.to(self.dtype).cumsum(1).float()
        positions = torch.sin(counted[..., None] * torch.tensor([1.0, 0.1, 0.01]))
        long = images[:, None].expand(-1, self.length, -1)
        return self.head(torch.cat([long, positions], -1)).mean(1)


def broken_count_of_a_mask() -> None:
    train(Observed(torch.bfloat16))


def healthy_count_of_a_mask_in_fp32() -> None:
    train(Observed(torch.float32))


def healthy_short_count_of_a_mask() -> None:
    train(Observed(torch.bfloat16, length=200))


def healthy_running_sum_of_probabilities() -> None:
    class Nucleus(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, images):
            scores = torch.linspace(0, 3, 700).softmax(0).bfloat16().cumsum(0)
            return self.head(images * scores[-1].float())

    train(Nucleus())
