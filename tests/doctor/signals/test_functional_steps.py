"""A step of torch.func is examined without a trace in the program."""

import sys

import torch
from torch import nn

from halfstep.doctor import Watch


def test_a_module_keeps_its_parameters_and_the_program_its_output(capsys) -> None:
    model = nn.Linear(3, 1)
    before = [each.detach().clone() for each in model.parameters()]
    model.bias.requires_grad_(requires_grad=False)

    def loss_of(weights, inputs):
        sys.stdout.write("called\n")
        return torch.func.functional_call(model, weights, (inputs,)).square().mean()

    watch = Watch()
    with watch:
        weights = {name: torch.randn_like(each) for name, each in model.named_parameters()}
        for _ in range(3):
            slopes = torch.func.grad(loss_of)(weights, torch.randn(4, 3))
            weights = {name: each - 0.1 * slopes[name] for name, each in weights.items()}
    evidence = watch.close()
    assert not watch.troubles
    assert evidence.loop.iterations == 3
    assert evidence.precision.loss is not None
    assert capsys.readouterr().out.split() == ["called"] * 3
    assert all(map(torch.equal, before, model.parameters()))
    assert [each.requires_grad for each in model.parameters()] == [True, False]


def test_parameters_that_a_function_computes_are_left_alone() -> None:
    model = nn.Linear(3, 1)

    def inner(weights, inputs):
        return torch.func.functional_call(model, weights, (inputs,)).square().mean()

    def outer(weights, inputs):
        slopes = torch.func.grad(inner)(weights, inputs)
        fast = {name: each - 0.1 * slopes[name] for name, each in weights.items()}
        return inner(fast, inputs)

    watch = Watch()
    with watch:
        weights = {name: each.detach().clone() for name, each in model.named_parameters()}
        for _ in range(3):
            torch.func.grad(outer)(weights, torch.randn(4, 3))
    watch.close()
    assert not watch.troubles
