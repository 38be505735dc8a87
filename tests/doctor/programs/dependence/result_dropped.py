"""A statement drops the result of an operator that does not work in place."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "RESULT_DROPPED"


class Attention(nn.Module):
    """Attention to places that a mask allows; the mask may be left out by mistake."""

    def __init__(self, *, masks: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)
        self.hide = self.hidden if masks else self.visible

    def hidden(self, scores, padding):
        return scores.masked_fill(padding[:, None], -1e9)

    def visible(self, scores, padding):
        scores.masked_fill(padding[:, None], -1e9)
        return scores

    def forward(self, tokens):
        rows = self.embed(tokens)
        scores = self.hide(rows @ rows.mT, tokens == 0)
        return self.head((scores.softmax(-1) @ rows).mean(1))


def train(model=None, after=None, loss_of=None, steps: int = 6) -> None:
    model = classifier() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(steps):
        loss = nn.functional.cross_entropy(model(images), labels)
        loss = loss if loss_of is None else loss_of(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after is not None:
            after(model)


def train_attention(*, masks: bool) -> None:
    torch.manual_seed(0)
    model = Attention(masks=masks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        tokens = torch.randint(1, 9, (16, 5))
        tokens[:, 3:] = 0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 3).backward()
        optimizer.step()


def broken() -> None:
    def limit(model) -> None:
        for parameter in model.parameters():
            parameter.data.clamp(-0.5, 0.5)

    train(after=limit)


def mended() -> None:
    def limit(model) -> None:
        for parameter in model.parameters():
            parameter.data.clamp_(-0.5, 0.5)

    train(after=limit)


def broken_in_a_module() -> None:
    train_attention(masks=False)


def mended_in_a_module() -> None:
    train_attention(masks=True)


def broken_by_a_division() -> None:
    def shared(loss):
        loss / 4
        return loss

    train(loss_of=shared)


def broken_by_a_method_that_is_not_called() -> None:
    def clear(model) -> None:
        model.zero_grad  # noqa: B018
        assert model[0].weight.norm() > 0

    train(after=clear)


def broken_by_an_attribute_that_freezes_nothing() -> None:
    model = classifier()
    for parameter in model[0].parameters():
        parameter.require_grad = False
    train(model)


def broken_by_a_rate_that_nothing_reads() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (images, labels) in enumerate(batches(6)):
        if step == 3:
            optimizer.lr = 0.01
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_marks_of_parameters() -> None:
    model = classifier()
    for parameter in model.parameters():
        parameter.is_small = parameter.numel() < 20
    train(model)


def healthy_set_of_numbers() -> None:
    seen = set()

    def note(model) -> None:
        seen.add(model[0].weight.norm().add(1).item())

    train(after=note)


def healthy_checks() -> None:
    def check(model) -> None:
        try:
            model[0].weight.add(torch.zeros(2, 3, 5))
        except RuntimeError as error:
            assert "size" in str(error)  # noqa: PT017

    train(after=check)


def healthy_draws_that_are_skipped() -> None:
    def skip(model) -> None:
        torch.rand(3)
        torch.randn_like(model[0].bias)

    train(after=skip)


def healthy_layer_called_for_its_statistics() -> None:
    norm = nn.BatchNorm1d(8)

    def observe(model) -> None:
        norm(torch.randn(16, 8))

    train(after=observe)
