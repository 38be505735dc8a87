"""One sample of one batch is NaN."""

import copy

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "CORRUPT_BATCH"


def train(*, corrupt: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(4)):
        if corrupt and number == 2:
            images[3, 1] = float("nan")
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(corrupt=True)


def mended() -> None:
    train(corrupt=False)


def train_with(loss_of_outputs, *, value: float = float("nan")) -> None:
    """Train a linear model whose third batch has such a value among its targets."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(4)):
        batch = {"targets": labels[:, None].float()}
        if number == 2:
            batch["targets"][3] = value
        optimizer.zero_grad()
        loss_of_outputs(model(images), batch).backward()
        optimizer.step()


def broken_in_the_targets_of_a_function() -> None:
    train_with(lambda outputs, batch: torch.nn.functional.mse_loss(outputs, batch["targets"]))


def broken_in_the_targets_of_a_module() -> None:
    criterion = torch.nn.MSELoss()
    train_with(lambda outputs, batch: criterion(outputs, target=batch["targets"]))


def broken_in_the_targets_of_an_operator() -> None:
    train_with(lambda outputs, batch: (outputs - batch["targets"]).square().mean())


def broken_logarithms_of_zero_in_the_targets() -> None:
    train_with(
        lambda outputs, batch: torch.nn.functional.smooth_l1_loss(outputs, batch["targets"]),
        value=-torch.inf,
    )


def broken_logarithms_of_zero_in_a_difference() -> None:
    train_with(lambda outputs, batch: (batch["targets"] - outputs).abs().mean(), value=-torch.inf)


def broken_before_the_loop_normalises_it() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(4)):
        if number == 2:
            images[3, 1] = float("nan")
        normalised = (images - images.mean(0)) / (images.std(0) + 1e-6)
        optimizer.zero_grad()
        scaler.scale(loss_of(model, normalised, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def train_after(prepare) -> None:
    """Train on batches that `prepare` makes from images, of which one sample is NaN."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(4)):
        rows = images.tolist()
        if number == 2:
            rows[7][1] = float("nan")
        prepared = prepare(torch.tensor(rows))
        optimizer.zero_grad()
        loss_of(model, prepared, labels).backward()
        optimizer.step()


def broken_before_the_loop_adds_noise() -> None:
    train_after(lambda images: images + 0.1 * torch.randn_like(images))


def broken_beside_columns_that_the_loop_computes() -> None:
    steps = torch.arange(8.0)[:, None]
    train_after(lambda images: torch.cat([images[:, :5], steps / 8], 1))


def broken_before_the_loop_standardises_each_sample() -> None:
    train_after(lambda images: torch.stack([(x - x.mean()) / x.std() for x in images]))


def broken_before_a_change_in_place() -> None:
    """Whether the loop made the NaN is unknown: doctor sees only the changed numbers."""
    train_after(lambda images: images.clamp_(min=0))


def broken_while_the_loss_scale_grows_often() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    for number, (images, labels) in enumerate(batches(40)):
        optimizer.zero_grad()
        if number % 4 == 3:
            images[0, 0] = float("nan")
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def train_after_probe(probe) -> None:
    """Train, after a model has seen memory that nothing has filled."""
    model = classifier()
    torch.use_deterministic_algorithms(mode=True)  # which fills such memory with NaN
    try:
        with torch.no_grad():
            probe(copy.deepcopy(model))
    finally:
        torch.use_deterministic_algorithms(mode=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss_of(model, images, labels).backward()
        optimizer.step()


def healthy_probe_with_empty_memory() -> None:
    train_after_probe(lambda model: model(torch.empty(2, 6)))


def healthy_probe_in_evaluation_mode() -> None:
    train_after_probe(lambda model: model.eval()(torch.empty((2, 6), dtype=torch.float32)))


def healthy_probe_like_a_batch() -> None:
    train_after_probe(lambda model: model(torch.empty_like(torch.ones(2, 6))))


def healthy_probe_of_a_tensor_of_a_size() -> None:
    train_after_probe(lambda model: model(torch.ones(1).new_empty(2, 6)))


class Spectral(torch.nn.Module):
    """A classifier of the magnitudes of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = classifier()

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.view_as_real(spectrum)[..., 1])


def train_spectral(*, corrupt: bool, masked: bool = False) -> None:
    """Train a model of complex numbers, of which one may have an imaginary part that is NaN."""
    model = Spectral()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(4)):
        numbers = [[complex(0, each) for each in row] for row in images.tolist()]
        if corrupt and number == 2:
            numbers[3][1] = complex(0.5, float("nan"))
        spectrum = torch.tensor(numbers)
        if masked:
            spectrum = torch.where(spectrum.isnan(), 0, spectrum)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(spectrum), labels).backward()
        optimizer.step()


def broken_in_an_imaginary_part() -> None:
    train_spectral(corrupt=True)


def healthy_spectra() -> None:
    train_spectral(corrupt=False)


def healthy_spectra_whose_nan_the_loop_replaces() -> None:
    train_spectral(corrupt=True, masked=True)


class OfSparse(torch.nn.Module):
    """A linear model of sparse batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(6, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.inner(images.to_dense())


def train_on_sparse(corrupt: float) -> None:
    model = OfSparse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(4)):
        if number == 2:
            images[3, 1] = corrupt
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images.to_sparse()), labels).backward()
        optimizer.step()


def broken_in_a_sparse_batch() -> None:
    train_on_sparse(float("nan"))


def healthy_sparse_batch() -> None:
    train_on_sparse(0.0)
