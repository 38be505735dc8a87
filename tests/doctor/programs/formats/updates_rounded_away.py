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
