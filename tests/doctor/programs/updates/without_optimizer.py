"""A frozen part is made trainable after the optimizer was created from the trainable part."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "PARAMETERS_WITHOUT_OPTIMIZER"


def parts() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def train(model, optimizer, loss_function=nn.functional.cross_entropy, after=None) -> None:
    for number, (images, labels) in enumerate(batches(8)):
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()
        if after is not None:
            after(number)


def unfreeze(*, add: bool) -> None:
    model = parts()
    model[0].requires_grad_(requires_grad=False)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)

    def after(number: int) -> None:
        if number == 3:
            model[0].requires_grad_()
            if add:
                optimizer.add_param_group({"params": [*model[0].parameters()]})

    train(model, optimizer, after=after)


def broken() -> None:
    unfreeze(add=False)


def mended() -> None:
    unfreeze(add=True)


class Listed(nn.Module):
    """Layers in a list, which does not register them.

    Args:
        register: Makes the list.
    """

    def __init__(self, register) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = register([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 3)

    def forward(self, images):
        for each in self.layers:
            images = each(images).relu()
        return self.head(images)


def broken_list_of_layers() -> None:
    model = Listed(list)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01))


def healthy_registered_layers() -> None:
    model = Listed(nn.ModuleList)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01))


class Centers(nn.Module):
    """A loss with a learned center for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.zeros(3, 3))

    def forward(self, outputs, labels):
        near = (outputs - self.centers[labels]).square().sum(1).mean()
        return nn.functional.cross_entropy(outputs, labels) + 0.1 * near


def broken_loss_with_parameters() -> None:
    model = parts()
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), Centers())


def healthy_loss_with_an_owner() -> None:
    model, loss = parts(), Centers()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.01)
    train(model, optimizer, loss)


def broken_by_an_attribute() -> None:
    model = parts()
    for each in model[0].parameters():
        each.requires_grad = False
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.01)

    def after(number: int) -> None:
        for each in model[0].parameters():
            each.requires_grad = True

    train(model, optimizer, after=after)


def healthy_head_of_a_model_that_was_loaded() -> None:
    model = parts()
    model.load_state_dict(parts().state_dict())
    train(model, torch.optim.SGD(model[2].parameters(), lr=0.01))


def healthy_critic_that_is_frozen_in_turns() -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(6, 6), parts()
    makes = torch.optim.SGD(generator.parameters(), lr=0.01)
    judges = torch.optim.SGD(critic.parameters(), lr=0.01)
    for images, labels in batches(8):
        critic.requires_grad_(requires_grad=True)
        judges.zero_grad()
        nn.functional.cross_entropy(critic(generator(images).detach()), labels).backward()
        judges.step()
        critic.requires_grad_(requires_grad=False)
        makes.zero_grad()
        (-nn.functional.cross_entropy(critic(generator(images)), labels)).backward()
        makes.step()


def healthy_attack_on_a_loaded_model() -> None:
    victim = parts()
    victim.load_state_dict(parts().state_dict())
    generator = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
    for images, labels in batches(8):
        optimizer.zero_grad()
        (-nn.functional.cross_entropy(victim(images + generator(images)), labels)).backward()
        optimizer.step()


class Placed(nn.Module):
    """A model with a parameter of its own, beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.place = nn.Parameter(torch.zeros(6))
        self.layers = parts()

    def forward(self, images):
        return self.layers(images + self.place)


def broken_groups_that_leave_out_a_parameter() -> None:
    model = Placed()
    layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
    train(model, torch.optim.SGD([p for each in layers for p in each.parameters()], lr=0.01))


def broken_group_from_a_generator_that_has_ended() -> None:
    model = parts()
    first = (each for each in model[0].parameters())
    sum(each.numel() for each in first)
    groups = [{"params": list(first)}, {"params": model[2].parameters()}]
    train(model, torch.optim.SGD(groups, lr=0.01))


def healthy_head_with_fp32_copies() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(6, 16), nn.Linear(16, 3).bfloat16()
    copies = [each.detach().float().requires_grad_() for each in head.parameters()]
    optimizer = torch.optim.SGD([*body.parameters(), *copies], lr=0.05)
    for images, labels in batches(8):
        optimizer.zero_grad()
        head.zero_grad()
        outputs = head(body(images).relu().bfloat16()).float()
        nn.functional.cross_entropy(outputs, labels).backward()
        for mine, its in zip(copies, head.parameters(), strict=True):
            mine.grad = its.grad.float()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(copies, head.parameters(), strict=True):
                its.copy_(mine)


def healthy_groups_of_two_optimizers() -> None:
    model = Placed()
    second = torch.optim.SGD([model.place], lr=0.01)

    def after(number: int) -> None:
        second.step()
        second.zero_grad()

    train(model, torch.optim.SGD(model.layers.parameters(), lr=0.01), after=after)


def healthy_part_that_was_trained_before() -> None:
    model = parts()
    train(model, torch.optim.SGD(model.parameters(), lr=0.01))
    train(model, torch.optim.SGD(model[2].parameters(), lr=0.01))


def in_stages(*, again: bool, after: bool = True) -> None:
    """Train a model, then its head alone with another optimizer, and then all of it again."""
    model = parts()
    train(model, torch.optim.SGD(model.parameters(), lr=0.05))
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.05)
    train(model, optimizer)
    model[0].requires_grad_()
    if again:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if after:
        train(model, optimizer)


def broken_in_stages() -> None:
    in_stages(again=False)


def healthy_in_stages() -> None:
    in_stages(again=True)


def healthy_unfrozen_at_the_end() -> None:
    in_stages(again=False, after=False)


class Adapted(nn.Module):
    """A frozen layer with a trained one beside it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.beside = layer.requires_grad_(requires_grad=False), nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) + self.beside(inputs)


def adapt(*, before: bool) -> None:
    """Train a model, and then an adapter of it with an optimizer made before or after it."""
    model = parts()
    train(model, torch.optim.SGD(model.parameters(), lr=0.05))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model[0].requires_grad_(requires_grad=False)
    model[-1] = Adapted(model[-1])
    if not before:
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.01)
    train(model, optimizer)


def broken_adapters_after_the_optimizer() -> None:
    adapt(before=True)


def healthy_adapters_before_the_optimizer() -> None:
    adapt(before=False)


class Taught(nn.Module):
    """Compares outputs with those of teachers, which it keeps in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.teachers = [nn.Linear(6, 3), nn.Linear(6, 3)]

    def forward(self, outputs, images):
        targets = [each(images).detach() for each in self.teachers]
        return sum(nn.functional.mse_loss(outputs, each) for each in targets)


def healthy_teachers_in_a_list() -> None:
    model, loss = parts(), Taught()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, _ in batches(8):
        optimizer.zero_grad()
        loss(model(images), images).backward()
        optimizer.step()
