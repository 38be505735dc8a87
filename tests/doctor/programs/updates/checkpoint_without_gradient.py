"""A reentrant checkpoint gets a frozen embedding as its only input."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from doctor.loops import batches

CODE = "CHECKPOINT_WITHOUT_GRADIENT"


class Reader(nn.Module):
    """A frozen embedding, a checkpointed block and a head.

    Args:
        run: Runs the block on the embedded tokens.
    """

    def __init__(self, run) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 16).requires_grad_(requires_grad=False)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU())
        self.head = nn.Linear(16, 3)
        self.run = run

    def forward(self, images):
        tokens = images.abs().mul(3).long().clamp(max=9)
        return self.head(self.run(self.block, self.embedding(tokens)).mean(1))


def train(model: nn.Module, count: int = 6) -> None:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for images, labels in batches(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def reentrant(block, states):
    return checkpoint(block, states, use_reentrant=True)


def broken() -> None:
    train(Reader(reentrant))


def mended() -> None:
    train(Reader(lambda block, states: checkpoint(block, states, use_reentrant=False)))


def broken_in_a_sequence() -> None:
    def run(block, states):
        return checkpoint_sequential(block, 2, states, use_reentrant=True)

    train(Reader(run))


def broken_in_the_loop() -> None:
    torch.manual_seed(0)
    block, head = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad()
        states = checkpoint(block, images, use_reentrant=True)
        nn.functional.cross_entropy(head(states), labels).backward()
        optimizer.step()


def broken_by_a_function_around_a_layer() -> None:
    def run(block, states):
        return checkpoint(lambda x: block(x) + x, states, use_reentrant=True)

    train(Reader(run))


def residual(layer, states):
    return states + layer(states)


def broken_by_a_function_that_gets_each_layer() -> None:
    def run(block, states):
        for layer in block:
            states = checkpoint(residual, layer, states, use_reentrant=True)
        return states

    train(Reader(run))


def healthy_input_that_requires_gradients() -> None:
    train(Reader(lambda block, states: reentrant(block, states.requires_grad_())))


def healthy_block_that_is_frozen_too() -> None:
    model = Reader(reentrant)
    model.block.requires_grad_(requires_grad=False)
    train(model)


def healthy_later_block_of_a_checkpointed_model() -> None:
    model = Reader(reentrant)
    model.embedding.requires_grad_(requires_grad=True)
    train(model)


def healthy_adapters_on_a_frozen_model() -> None:
    """Low-rank adapters, with gradients for the inputs of the checkpoint."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(16, 16).requires_grad_(requires_grad=False)
            self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, states):
            return self.base(states) + self.up(self.down(states))

    model = Reader(lambda block, states: reentrant(block, states.requires_grad_()))
    model.block = nn.Sequential(Adapted(), nn.GELU())
    model.head.requires_grad_(requires_grad=False)
    train(model)


def healthy_part_that_the_loss_does_not_use() -> None:
    """Such as the pooler of a language model: it runs, and nothing reads its result."""

    class Pooled(Reader):
        def __init__(self) -> None:
            super().__init__(lambda block, states: block(states))
            self.pooler = nn.Linear(16, 16)

        def forward(self, images):
            self.pooler(torch.zeros(1, 16))
            return super().forward(images)

    train(Pooled())
