"""A compiler backend whose code overflows, although eager mode does not."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "COMPILED_ONLY"


def overflowing(graph, inputs):
    """Compile to code with an overflow in its last operator."""
    del inputs

    def run(*values):
        return tuple(
            each * 1e38 * 1e38 if each.is_floating_point() else each for each in graph(*values)
        )

    return run


def train(backend) -> None:
    torch._dynamo.reset()
    model = torch.compile(classifier(), backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(overflowing)


def mended() -> None:
    train("eager")
