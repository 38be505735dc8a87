"""The loop keeps fp32 copies of a bf16 model's parameters, and updates only the copies."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "MASTER_WEIGHTS_NOT_COPIED"


def train(copy, *, scaled: bool = False, rate: float = 0.01, leaves: bool = True) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).bfloat16()
    masters = [each.detach().clone().float().requires_grad_(leaves) for each in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
    for images, labels in batches(4):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(images.bfloat16()).float(), labels)
        scaler.scale(loss).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
        scaler.step(optimizer)
        scaler.update()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            copy(parameter, master)


def in_place(parameter: nn.Parameter, master: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(master)


def broken() -> None:
    train(lambda parameter, master: None)


def mended() -> None:
    train(in_place)


def broken_under_a_scaler() -> None:
    train(lambda parameter, master: None, scaled=True)


def broken_for_copies_that_need_no_gradients() -> None:
    train(lambda parameter, master: None, leaves=False)


def healthy_with_copies_that_need_no_gradients() -> None:
    train(in_place, leaves=False)


def healthy_with_other_data() -> None:
    def replaced(parameter, master):
        parameter.data = master.detach().to(parameter.dtype)

    train(replaced)


def healthy_with_a_frozen_part_and_a_temperature() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3, bias=False).bfloat16()
    temperature = torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD([temperature, *model.parameters()], lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        outputs = model(images.bfloat16()).float() / temperature
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


def healthy_with_updates_that_bf16_rounds_away() -> None:
    train(in_place, rate=1e-9)


def healthy_with_a_new_copy_of_the_model_in_each_step() -> None:
    torch.manual_seed(0)
    masters = [torch.randn(3, 6).requires_grad_()]
    optimizer = torch.optim.SGD(masters, lr=0.01)
    first = nn.Linear(6, 3, bias=False).bfloat16()
    for number, (images, labels) in enumerate(batches(4)):
        model = nn.Linear(6, 3, bias=False).bfloat16() if number else first
        if number:
            in_place(model.weight, masters[0])
        loss = nn.functional.cross_entropy(model(images.bfloat16()).float(), labels)
        loss.backward()
        masters[0].grad = model.weight.grad.float()
        optimizer.step()


def train_in_groups(lost: set[str], *, moves: str = "all", taken: bool = False) -> None:
    """Train with fp32 copies that are grouped by kind of parameter.

    Args:
        lost: Kinds of the parameters that do not get their copies back: "weight" or "bias".
        moves: Kind of the parameters that have a learning rate above 0, or "all".
        taken: Whether the gradients are taken from the model before the step.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).bfloat16()
    kinds = {
        kind: [each for name, each in model.named_parameters() if name.endswith(kind)]
        for kind in ("bias", "weight")
    }
    masters = {
        kind: [each.detach().clone().float().requires_grad_() for each in mine]
        for kind, mine in kinds.items()
    }
    optimizer = torch.optim.AdamW(
        [
            {"params": mine, "lr": 0.01 if moves in (kind, "all") else 0.0}
            for kind, mine in masters.items()
        ]
    )
    for images, labels in batches(6):
        nn.functional.cross_entropy(model(images.bfloat16()).float(), labels).backward()
        for kind, mine in kinds.items():
            for parameter, master in zip(mine, masters[kind], strict=True):
                master.grad = parameter.grad.float()
                if taken:
                    parameter.grad = None
        optimizer.step()
        model.zero_grad()
        for kind in kinds.keys() - lost:
            for parameter, master in zip(kinds[kind], masters[kind], strict=True):
                in_place(parameter, master)


def broken_for_the_biases() -> None:
    train_in_groups({"bias"})


def broken_for_the_weights_whose_gradients_are_taken() -> None:
    train_in_groups({"weight"}, taken=True)


def healthy_in_groups() -> None:
    train_in_groups(set())


def healthy_with_copies_that_do_not_move() -> None:
    train_in_groups(set(), moves="weight", taken=True)


def train_in_parts(*, copies_all: bool, then: int = 4) -> None:
    """Train a head with fp32 copies, and after some steps its body, too."""
    torch.manual_seed(0)
    body, head = nn.Linear(6, 16).bfloat16(), nn.Linear(16, 3).bfloat16()
    body.requires_grad_(requires_grad=False)
    low = [*head.parameters()]
    masters = [each.detach().clone().float().requires_grad_() for each in low]
    optimizer = torch.optim.SGD(masters, lr=0.05)
    for number, (images, labels) in enumerate(batches(8)):
        if number == then:
            body.requires_grad_(requires_grad=True)
            more = [each.detach().clone().float().requires_grad_() for each in body.parameters()]
            optimizer.add_param_group({"params": more})
            low, masters = [*low, *body.parameters()], [*masters, *more]
        outputs = head(body(images.bfloat16()).relu()).float()
        nn.functional.cross_entropy(outputs, labels).backward()
        for parameter, master in zip(low, masters, strict=True):
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        count = len(low) if copies_all else 2
        for parameter, master in zip(low[:count], masters, strict=False):
            in_place(parameter, master)


def broken_for_a_body_that_joins_later() -> None:
    train_in_parts(copies_all=False)


def healthy_with_a_body_that_joins_later() -> None:
    train_in_parts(copies_all=True)


def healthy_with_a_body_that_stays_frozen() -> None:
    train_in_parts(copies_all=False, then=100)


def train_with_pairs(pair, *, count: int = 8) -> None:
    """Train with pairs of a parameter and its copy that are made once."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).bfloat16()
    masters = [each.detach().clone().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.05)
    pairs = pair(zip(model.parameters(), masters, strict=True))
    for images, labels in batches(count):
        model.zero_grad()
        nn.functional.cross_entropy(model(images.bfloat16()).float(), labels).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        for parameter, master in pairs:
            in_place(parameter, master)


def broken_by_pairs_that_the_first_step_uses_up() -> None:
    train_with_pairs(iter)


def healthy_with_a_list_of_pairs() -> None:
    train_with_pairs(list)


def healthy_with_copies_before_each_step() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).bfloat16()
    masters = [each.detach().clone().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.05)
    for images, labels in batches(8):
        for parameter, master in zip(model.parameters(), masters, strict=True):
            in_place(parameter, master)
        model.zero_grad()
        nn.functional.cross_entropy(model(images.bfloat16()).float(), labels).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
