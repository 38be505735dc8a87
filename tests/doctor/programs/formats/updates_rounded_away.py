"""A small learning rate on bf16 parameters."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "UPDATES_ROUNDED_AWAY"


def train(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for images, labels in batches(5):
        optimizer.zero_grad()
        functional.cross_entropy(model(images.to(dtype)).float(), labels).backward()
        optimizer.step()


def broken() -> None:
    train(torch.bfloat16)


def mended() -> None:
    train(torch.float32)


def healthy_once_nothing_is_left_to_learn() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3, bias=False).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    wanted = torch.randn(6, 3)
    for images, _ in batches(301):
        optimizer.zero_grad()
        (functional.mse_loss(model(images.bfloat16()).float(), images @ wanted)).backward()
        optimizer.step()


class Compensated(torch.optim.Optimizer):
    """AdamW for half parameters, with or without a way to keep their rounding errors.

    Args:
        params: Half parameters.
        keeps: "remainder" (Kahan), "fp32" (fp32 parameters), "random" (stochastic rounding), or
            "nothing".
    """

    def __init__(self, params, keeps: str) -> None:
        super().__init__(params, {"lr": 1e-4})
        self.keeps = keeps

    @torch.no_grad()
    def step(self) -> None:
        for each in self.param_groups[0]["params"]:
            state = self.state[each]
            if not state:
                state["first"] = torch.zeros_like(each, dtype=torch.float32)
                state["second"] = torch.zeros_like(each, dtype=torch.float32)
                state["kept"] = each.float() if self.keeps == "fp32" else torch.zeros_like(each)
            gradient = each.grad.float()
            state["first"].lerp_(gradient, 0.1)
            state["second"].lerp_(gradient.square(), 0.001)
            update = -1e-4 * state["first"] / (state["second"].sqrt() + 1e-8)
            if self.keeps == "fp32":
                each.copy_(state["kept"].add_(update))
            elif self.keeps == "remainder":
                wanted = update + state["kept"]
                before = each.clone()
                each.add_(wanted)
                state["kept"].copy_(wanted - (each.float() - before.float()))
            elif self.keeps == "random":
                bits = (each.float() + update).view(torch.int32)
                bits += torch.randint(0, 1 << 16, each.shape, dtype=torch.int32)
                each.copy_((bits & -65536).view(torch.float32))
            else:
                each.add_(update)


def train_half(keeps: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3)).bfloat16()
    optimizer = Compensated(model.parameters(), keeps)
    for images, labels in batches(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.bfloat16()).float(), labels).backward()
        optimizer.step()


def broken_with_state_that_keeps_nothing() -> None:
    train_half("nothing")


def healthy_with_the_remainder() -> None:
    train_half("remainder")


def healthy_with_fp32_copies_in_the_optimizer() -> None:
    train_half("fp32")


def healthy_rounded_at_random() -> None:
    train_half("random")


def healthy_weights_that_are_put_back() -> None:
    """The best weights of an earlier part are put back after each part."""
    model = classifier()
    best = {name: each.clone() for name, each in model.state_dict().items()}
    for _ in range(2):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for images, labels in batches(70):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        model.load_state_dict(best)


def by_hand(update, *, rate: float = 1e-4, dtype: torch.dtype = torch.bfloat16) -> None:
    """Train without an optimizer.

    Args:
        update: Changes a parameter in place, given what to add to it.
        rate: The learning rate.
        dtype: Format of the parameters.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    for images, labels in batches(20):
        model.zero_grad()
        functional.cross_entropy(model(images.to(dtype)).float(), labels).backward()
        with torch.no_grad():
            for each in model.parameters():
                update(each, -rate * each.grad)


def _assign(parameter, added) -> None:
    parameter.data = parameter.data + added


def broken_in_place_without_an_optimizer() -> None:
    by_hand(lambda parameter, added: parameter.add_(added))


def broken_by_an_assignment_without_an_optimizer() -> None:
    by_hand(_assign)


def healthy_large_steps_without_an_optimizer() -> None:
    by_hand(_assign, rate=0.3)


def healthy_fp32_without_an_optimizer() -> None:
    by_hand(_assign, dtype=torch.float32)


def healthy_rate_of_zero_without_an_optimizer() -> None:
    by_hand(lambda parameter, added: parameter.add_(added), rate=0.0)


def _remainders():
    kept: dict[torch.Tensor, torch.Tensor] = {}

    def update(parameter, added) -> None:
        wanted = added + kept.get(parameter, 0)
        before = parameter.clone()
        parameter.add_(wanted)
        kept[parameter] = wanted - (parameter - before)

    return update


def healthy_remainder_without_an_optimizer() -> None:
    by_hand(_remainders())


def functional_training(step, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Train a dictionary of weights with `torch.func.grad`.

    Args:
        step: Returns the new weight, given the old one and what to add to it.
        dtype: Format of the weights.
    """
    torch.manual_seed(0)
    weights = {"scale": torch.ones(6, 3, dtype=dtype), "shift": torch.ones(3, dtype=dtype)}

    def loss(weights, images, labels):
        outputs = images @ weights["scale"].float() + weights["shift"].float()
        return functional.cross_entropy(outputs, labels)

    for images, labels in batches(20):
        slopes = torch.func.grad(loss)(weights, images, labels)
        weights = {name: step(each, -1e-3 * slopes[name]) for name, each in weights.items()}


def broken_in_functional_style() -> None:
    functional_training(lambda weight, added: weight + added)


def healthy_in_functional_style() -> None:
    functional_training(lambda weight, added: weight + added, dtype=torch.float32)


def healthy_sums_that_are_no_weights() -> None:
    """What the loop computes from weights does not become one."""

    def step(weight, added):
        (weight + added / 1024).norm()
        return weight + 300 * added

    functional_training(step)


def healthy_bias_before_a_norm() -> None:
    """The gradient of the bias is nothing but rounding."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, track_running_stats=False)
    model = nn.Sequential(nn.Linear(6, 16), norm, nn.ReLU(), nn.Linear(16, 3)).bfloat16()
    nn.init.ones_(model[0].bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in batches(40):
        optimizer.zero_grad()
        functional.cross_entropy(model(images.bfloat16()).float(), labels).backward()
        optimizer.step()


class Places(nn.Module):
    """Learns places in metres from distances to them.

    Args:
        dtype: Format of the places.
        start: Added to them in the forward pass.
    """

    def __init__(self, dtype: torch.dtype, start: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start = start
        first = PLACE + 3 * torch.randn(4, 2, dtype=torch.float64)
        self.place = nn.Parameter((first - start).to(dtype))

    def forward(self, shots: torch.Tensor) -> torch.Tensor:
        return (shots[:, None] - (self.start + self.place.double())).norm(dim=-1).float()


PLACE = 5_403_700.0


def locate(dtype: torch.dtype, start: float = 0.0, *, rate: float = 0.02) -> None:
    model = Places(dtype, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    true = PLACE + 3 * torch.randn(4, 2, dtype=torch.float64)
    for _ in range(20):
        shots = PLACE + 400 * torch.rand(8, 2, dtype=torch.float64)
        optimizer.zero_grad()
        functional.mse_loss(model(shots), (shots[:, None] - true).norm(dim=-1).float()).backward()
        optimizer.step()


def broken_places_far_from_zero() -> None:
    locate(torch.float32)


def healthy_places_in_fp64() -> None:
    locate(torch.float64)


def healthy_differences_of_places() -> None:
    locate(torch.float32, PLACE)


def healthy_places_that_take_large_steps() -> None:
    locate(torch.float32, rate=2.0)
