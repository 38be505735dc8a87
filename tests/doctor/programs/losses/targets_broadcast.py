"""A regression compares outputs of shape (8, 1) with targets of shape (8,)."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, half_autocast

CODE = "TARGETS_BROADCAST"


def train(criterion) -> None:
    """Train a model with one output; the criterion gets outputs (8, 1) and targets (8,)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
        outputs, targets = outputs.float(), labels.float()
        loss = criterion(outputs, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(lambda outputs, targets: ((outputs - targets) ** 2).mean())


def mended() -> None:
    train(lambda outputs, targets: ((outputs - targets.view_as(outputs)) ** 2).mean())


def broken_targets_first() -> None:
    train(lambda outputs, targets: (targets - outputs).abs().mean())


def broken_for_the_result_of_a_call() -> None:
    train(lambda outputs, targets: ((outputs.tanh() - targets) ** 2).mean())


def broken_in_a_function() -> None:
    train(functional.smooth_l1_loss)


def broken_in_a_module() -> None:
    train(nn.MSELoss())


class Cauchy(nn.Module):
    def forward(self, outputs, targets):
        return (outputs - targets).square().log1p().mean()


def broken_in_a_module_of_the_program() -> None:
    train(Cauchy())


def broken_targets_with_more_dimensions() -> None:
    def criterion(outputs, targets):
        columns = torch.tensor([[float(each)] for each in targets.tolist()])
        return functional.mse_loss(outputs.squeeze(-1), columns)

    train(criterion)


def broken_by_a_column_that_the_model_makes() -> None:
    def criterion(outputs, targets):
        return functional.mse_loss(outputs.squeeze(-1).unsqueeze(1), targets)

    train(criterion)


def of_pairs(labels: torch.Tensor) -> torch.Tensor:
    """Return rewards of shape (8, 1), plus values of shape (8,) of the states that follow."""
    rewards = torch.tensor([[float(each)] for each in labels.tolist()])
    return rewards + 0.9 * rewards.sin().flatten().roll(1) * (rewards < 1)


def broken_by_targets_that_broadcast_before() -> None:
    train(lambda outputs, targets: (of_pairs(targets) - outputs).square().mean())


def broken_for_a_row_by_targets_that_broadcast_before() -> None:
    train(lambda outputs, targets: functional.mse_loss(outputs.flatten(), of_pairs(targets)))


def healthy_samples_of_an_ensemble() -> None:
    """As many targets for each output as there are samples, by chance."""
    train(lambda outputs, targets: (outputs - targets[:, None] - torch.randn(8, 8)).square().mean())


def healthy_columns_that_are_equal() -> None:
    """Targets of shape (8, 1) that are repeated: each output still meets its own one."""
    train(
        lambda outputs, targets: (outputs - targets[:, None].expand(8, 8).clone()).square().mean()
    )


def healthy_factors_of_pairs() -> None:
    train(lambda outputs, targets: (outputs * (targets[:, None] - targets)).square().mean())


class OfAllPairs(nn.Module):
    """A relative: outputs are compared with all others on purpose."""

    def forward(self, outputs, targets):
        others = (targets[:, None] - targets).sign()
        return functional.softplus(-(outputs - outputs.T) * others).mean()


def healthy_pairs_in_a_module_of_the_program() -> None:
    train(OfAllPairs())


def broken_weights_of_the_samples() -> None:
    """As in a policy gradient: outputs of shape (8,) and advantages of shape (8, 1)."""

    def criterion(outputs, targets):
        columns = torch.tensor([[float(each)] for each in targets.tolist()])
        return -(outputs.squeeze(-1).exp() * columns).mean()

    train(criterion)


def broken_weights_that_divide() -> None:
    train(lambda outputs, targets: (outputs.square() / (targets + 1)).mean())


def healthy_weights_of_the_same_shape() -> None:
    train(lambda outputs, targets: -(outputs.squeeze(-1).exp() * targets).mean())


def healthy_outer_product() -> None:
    train(lambda outputs, targets: (outputs.squeeze(-1) * targets[:, None]).square().mean())


class HuberLoss(nn.Module):
    """A loss of the program's own, with the name of one of torch."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.huber_loss(outputs.squeeze(-1), targets)


def healthy_own_loss_with_the_name_of_torchs() -> None:
    train(HuberLoss())


def healthy_equal_targets() -> None:
    """As in a GAN, where all outputs are to be 1."""
    train(lambda outputs, targets: ((outputs - torch.ones(8)) ** 2).mean())


def healthy_quantiles() -> None:
    train(lambda outputs, targets: (outputs - torch.tensor([0.1, 0.5, 0.9])).abs().mean())


def healthy_all_pairs_of_a_view() -> None:
    def criterion(outputs, targets):
        flat = outputs.squeeze(-1)
        return (flat.view(-1, 1) - targets).abs().min(1).values.mean()

    train(criterion)


def healthy_all_pairs() -> None:
    """A distance between every output and every target, with dimensions added for it."""

    def criterion(outputs, targets):
        distances = (outputs.squeeze(-1)[:, None] - targets).abs()
        return distances.min(1).values.mean() + distances.min(0).values.mean()

    train(criterion)


def healthy_distances_to_learned_centres() -> None:
    """As many centres as samples; the loop itself trains the centres."""
    centres = torch.linspace(-1, 1, 8, requires_grad=True)
    optimizer = torch.optim.SGD([centres], lr=0.01)
    for images, _ in batches(4):
        optimizer.zero_grad()
        column = images.sum(1, keepdim=True)
        (column - centres).square().min(1).values.mean().backward()
        optimizer.step()


def healthy_all_targets() -> None:
    train(lambda outputs, targets: (outputs.squeeze(-1) - targets[:, None]).abs().min(0)[0].mean())


def healthy_outputs_among_each_other() -> None:
    def criterion(outputs, targets):
        ranks = torch.relu(1 - (outputs - outputs.squeeze(-1)))
        return (ranks * (targets[:, None] > targets)).mean()

    train(criterion)


def healthy_with_one_target_for_all() -> None:
    train(lambda outputs, targets: functional.mse_loss(outputs, targets.mean().expand_as(outputs)))


def healthy_with_a_mean_of_the_targets() -> None:
    train(lambda outputs, targets: ((outputs - targets.mean()) ** 2).mean())


def healthy_row_of_outputs() -> None:
    """Shapes (1, 8) and (8,) broadcast to (1, 8), so each output meets its own target."""
    train(lambda outputs, targets: functional.mse_loss(outputs.T, targets))


def healthy_metric_without_gradients() -> None:
    def criterion(outputs, targets):
        with torch.no_grad():
            assert (outputs - targets).isfinite().all()
        return functional.mse_loss(outputs.squeeze(-1), targets)

    train(criterion)


def samples_of(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return targets of shape (8, 1), and a weight for each of them."""
    targets = labels.float()[:, None]
    return targets, 0.2 + targets


def weigh(criterion) -> None:
    """Train a model with one output; the criterion gets outputs, targets and weights (8, 1)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        criterion(model(images), *samples_of(labels)).backward()
        optimizer.step()


def broken_weights_of_a_mean() -> None:
    mean = nn.SmoothL1Loss()
    weigh(lambda outputs, targets, weights: (mean(outputs, targets) * weights).mean())


def broken_weights_of_a_mean_of_squares() -> None:
    def criterion(outputs, targets, weights):
        error = ((outputs - targets) ** 2).mean()
        return (weights.squeeze(1) * error).sum() + 1e-3 * outputs.square().mean()

    weigh(criterion)


def broken_variances_that_divide_a_mean() -> None:
    weigh(lambda outputs, targets, weights: (functional.l1_loss(outputs, targets) / weights).mean())


def broken_weights_of_a_mean_of_classes() -> None:
    def criterion(outputs, targets, weights):
        both = torch.cat([outputs, -outputs], 1)
        loss = functional.cross_entropy(both, (targets > 0).long().squeeze(1))
        return 0.5 * (loss * weights.squeeze(1)).mean()

    weigh(criterion)


class Weighted(nn.Module):
    """A loss with weights, as a module of the program.

    Args:
        reduction: How the inner loss reduces.
    """

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.inner = nn.BCEWithLogitsLoss(reduction=reduction)

    def forward(self, outputs, targets, weights):
        return (self.inner(outputs, (targets > 0).float()) * weights).mean()


def broken_weights_in_a_module_of_the_program() -> None:
    weigh(Weighted("mean"))


def healthy_weights_in_a_module_of_the_program() -> None:
    weigh(Weighted("none"))


def healthy_weights_that_are_equal() -> None:
    def criterion(outputs, targets, weights):
        return (functional.mse_loss(outputs, targets) * torch.ones_like(weights)).mean()

    weigh(criterion)


def healthy_weights_of_several_terms() -> None:
    """One loss enters with the factors of three horizons."""

    def criterion(outputs, targets, weights):
        horizons = torch.tensor([0.5, 0.3, 0.2])
        return (functional.mse_loss(outputs, targets) * horizons).sum() + 0 * weights.sum()

    weigh(criterion)


def healthy_mean_of_the_weights() -> None:
    def criterion(outputs, targets, weights):
        return functional.mse_loss(outputs, targets) * weights.mean()

    weigh(criterion)


def healthy_scale_that_is_learned() -> None:
    """One number of the model multiplies a row of the data, and the result is averaged."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        speed = model(images).mean()
        distance = speed * labels.float()
        (distance.mean() + (distance - 1).square().mean()).backward()
        optimizer.step()


def healthy_return_of_a_whole_episode() -> None:
    """The sum of log-probabilities is that of one episode, and each reward is one of it."""

    def criterion(outputs, targets, weights):
        chances = functional.logsigmoid(outputs).sum()
        return -(chances * (targets - weights.mean())).sum()

    weigh(criterion)


class WithLoss(nn.Module):
    """A model that computes its own loss.

    Args:
        loss_of: A function of outputs, shape (8, 1), and targets, shape (8,).
    """

    def __init__(self, loss_of) -> None:
        super().__init__()
        self.body, self.loss_of = nn.Linear(6, 1), loss_of
        self.register_buffer("ends", torch.linspace(-1, 1, 8))

    def forward(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.loss_of(self.body(images), targets, self.ends)


def train_with_loss(loss_of) -> None:
    torch.manual_seed(0)
    model = WithLoss(loss_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        model(images, labels.float()).backward()
        optimizer.step()


def broken_inside_of_a_model() -> None:
    train_with_loss(lambda outputs, targets, _: functional.mse_loss(outputs, targets))


def broken_by_a_difference_inside_of_a_model() -> None:
    train_with_loss(lambda outputs, targets, _: (targets - outputs).abs().mean())


def healthy_inside_of_a_model() -> None:
    train_with_loss(lambda outputs, targets, _: functional.l1_loss(outputs.squeeze(1), targets))


def healthy_metric_without_gradients_inside_of_a_model() -> None:
    def loss_of(outputs, targets, ends):
        with torch.no_grad():
            assert (targets - outputs).abs().mean() > 0
        return functional.l1_loss(outputs.squeeze(1), targets)

    train_with_loss(loss_of)


def healthy_all_pairs_inside_of_a_model() -> None:
    train_with_loss(
        lambda outputs, targets, _: (
            (outputs - targets[None, :]).abs().min(1).values.mean()
            + (outputs.squeeze(1)[:, None] - targets).square().mean() / 100
        )
    )


def healthy_basis_of_as_many_functions_as_samples() -> None:
    """Each output is compared with all centres of a basis, of which a sum is the prediction."""

    def loss_of(outputs, targets, ends):
        basis = (-(outputs - ends).square()).exp()
        return functional.mse_loss(basis @ ends, targets)

    train_with_loss(loss_of)
