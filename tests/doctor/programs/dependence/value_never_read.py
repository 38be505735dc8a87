"""A step computes a mask of the padding, and the loss does not use it."""

# ruff: noqa: B007, F841, RET504, RUF059  (the programs contain what nothing reads)

import torch
from torch import nn

CODE = "VALUE_NEVER_READ"
LENGTH = 6


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


class Pooled(Tagger):
    def forward(self, tokens, lengths):
        return self.head(self.embed(tokens).mean(1))


class PooledToLengths(Tagger):
    def forward(self, tokens, lengths):
        places = torch.arange(LENGTH, device=tokens.device)
        inside = (places < lengths[:, None])[..., None]
        return self.head((self.embed(tokens) * inside).sum(1) / lengths[:, None])


class Returning(nn.Module):
    """Layers that return more than is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 8, batch_first=True)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        rows, (state, cell) = self.rows(inputs)
        mixed, weights = self.mix(rows, rows, rows)
        largest, places = mixed.max(1)
        return self.head(largest)


class Residual(nn.Module):
    def __init__(self, *, adds: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.run = self.with_input if adds else self.without_input

    def with_input(self, inputs):
        before = inputs
        inputs = torch.relu(self.layer(inputs))
        return before + inputs

    def without_input(self, inputs):
        kept = inputs
        inputs = torch.relu(self.layer(inputs))
        return inputs

    def forward(self, inputs):
        return self.head(self.run(inputs))


def sentences(count: int):
    """Yield tokens, padded by 0, their classes, and their lengths."""
    torch.manual_seed(0)
    for _ in range(count):
        tokens = torch.randint(1, 9, (16, LENGTH))
        lengths = torch.randint(2, LENGTH + 1, (16,))
        classes = tokens % 3
        tokens[torch.arange(LENGTH) >= lengths[:, None]] = 0
        yield tokens, classes, lengths


def points(count: int):
    """Yield inputs, classes, a weight, a group, and the number of each sample."""
    torch.manual_seed(0)
    for number in range(count):
        inputs = torch.randn(16, 8)
        numbers = torch.arange(16) + 16 * number
        weights, group = torch.rand(16), torch.randint(0, 2, (16,))
        yield inputs, inputs[:, :3].argmax(1), weights, group, numbers


def update(optimizer, loss) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def start(model):
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def broken() -> None:
    model, optimizer = start(Tagger())
    for tokens, classes, _ in sentences(6):
        mask = (tokens != 0).float()
        losses = nn.functional.cross_entropy(model(tokens).mT, classes, reduction="none")
        update(optimizer, losses.mean())


def mended() -> None:
    model, optimizer = start(Tagger())
    for tokens, classes, _ in sentences(6):
        mask = (tokens != 0).float()
        losses = nn.functional.cross_entropy(model(tokens).mT, classes, reduction="none")
        update(optimizer, (losses * mask).sum() / mask.sum())


def train_pooled(model) -> None:
    model, optimizer = start(model)
    for tokens, _, lengths in sentences(6):
        loss = nn.functional.cross_entropy(model(tokens, lengths), tokens[:, 0] % 3)
        update(optimizer, loss)


def broken_by_a_weight_that_is_not_read() -> None:
    model, optimizer = start(nn.Linear(8, 3))
    for inputs, classes, trust in ((*each[:2], each[2]) for each in points(6)):
        losses = nn.functional.cross_entropy(model(inputs), classes, reduction="none")
        update(optimizer, losses.mean())


def broken_by_a_value_that_is_overwritten() -> None:
    model, optimizer = start(nn.Linear(8, 3))
    for inputs, classes, *_ in points(6):
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, classes)
        loss = 0.01 * outputs.square().mean()
        update(optimizer, loss)


def broken_by_actions_that_are_drawn_again() -> None:
    model, optimizer = start(nn.Linear(8, 3))

    def episodes():
        inputs = torch.randn(16, 8)
        actions = inputs[:, :3].argmax(1)
        return inputs, actions, torch.randn(16)

    torch.manual_seed(0)
    for _ in range(6):
        inputs, actions, rewards = episodes()
        policy = torch.distributions.Categorical(logits=model(inputs))
        update(optimizer, -(policy.log_prob(policy.sample()) * rewards).mean())


def broken_by_an_input_that_is_kept() -> None:
    model, optimizer = start(Residual(adds=False))
    for inputs, classes, *_ in points(6):
        update(optimizer, nn.functional.cross_entropy(model(inputs), classes))


def healthy_layers_that_return_more() -> None:
    model, optimizer = start(Returning())
    for inputs, classes, *_ in points(6):
        rows = inputs[:, None].expand(-1, 4, -1)
        update(optimizer, nn.functional.cross_entropy(model(rows), classes))


def healthy_numbers_and_groups_of_samples() -> None:
    model, optimizer = start(nn.Linear(8, 3))
    for inputs, classes, _, group, numbers in points(6):
        update(optimizer, nn.functional.cross_entropy(model(inputs), classes))


def healthy_autoencoder_of_labelled_data() -> None:
    model, optimizer = start(nn.Linear(8, 8))
    for inputs, classes, weights, *_ in points(6):
        update(optimizer, nn.functional.mse_loss(model(inputs), inputs))


def healthy_autoencoder_beside_one_number_of_each_sample() -> None:
    model, optimizer = start(nn.Linear(8, 8))
    for inputs, score in ((each[0], each[2]) for each in points(6)):
        update(optimizer, nn.functional.mse_loss(model(inputs), inputs))


def healthy_metrics_that_are_printed() -> None:
    model, optimizer = start(nn.Linear(8, 3))
    for step, (inputs, classes, weights, *_) in enumerate(points(6)):
        outputs = model(inputs)
        entropy = torch.distributions.Categorical(logits=outputs).entropy().mean()
        update(optimizer, nn.functional.cross_entropy(outputs, classes))
        if step == 3:
            assert entropy.item() > 0 < weights.mean().item()


def healthy_field_of_the_evaluation() -> None:
    model, optimizer = start(nn.Linear(8, 3))
    for inputs, classes, weights, group, numbers in points(6):
        update(optimizer, nn.functional.cross_entropy(model(inputs), classes))
    with torch.no_grad():
        for inputs, classes, weights, group, numbers in points(2):
            assert (weights * (model(inputs).argmax(1) == classes)).mean() >= 0


def healthy_models_with_one_interface() -> None:
    for model in (PooledToLengths(), Pooled()):
        train_pooled(model)


def healthy_losses_with_one_signature() -> None:
    def of_classes(outputs, inputs, classes):
        return nn.functional.cross_entropy(outputs[:, :3], classes)

    def of_inputs(outputs, inputs, classes):
        return nn.functional.mse_loss(outputs, inputs)

    for loss_of in (of_classes, of_inputs):
        model, optimizer = start(nn.Linear(8, 8))
        for inputs, classes, *_ in points(6):
            update(optimizer, loss_of(model(inputs), inputs, classes))


def healthy_results_of_a_function_with_effects() -> None:
    model, optimizer = start(nn.Linear(8, 3))

    def step(inputs, classes):
        loss = nn.functional.cross_entropy(model(inputs), classes)
        update(optimizer, loss)
        return loss.detach()

    for inputs, classes, *_ in points(6):
        loss = step(inputs, classes)


def fields(count: int):
    for inputs, classes, weights, group, _ in points(count):
        yield {
            "inputs": inputs,
            "classes": classes,
            "weights": weights,
            "group": group,
            "trust": weights,
        }


def train_on_fields(loss_of) -> None:
    model, optimizer = start(nn.Linear(8, 3))
    for batch in fields(6):
        update(optimizer, loss_of(model(batch["inputs"]), batch).mean())


def broken_by_an_entry_that_is_not_read() -> None:
    def loss_of(outputs, batch):
        weights = batch["weights"]
        return nn.functional.cross_entropy(outputs, batch["classes"], reduction="none")

    train_on_fields(loss_of)


def healthy_entry_of_a_dict_that_another_function_reads() -> None:
    def weighted(outputs, classes, trust, **_):
        return trust * nn.functional.cross_entropy(outputs, classes, reduction="none")

    def loss_of(outputs, batch):
        trust = batch["trust"]
        classes = batch["classes"]
        return weighted(**batch, outputs=outputs)

    train_on_fields(loss_of)


def healthy_entries_of_groups() -> None:
    def loss_of(outputs, batch):
        classes, group = batch["classes"], batch["group"]
        return nn.functional.cross_entropy(outputs, classes)

    train_on_fields(loss_of)


class WithTargets(nn.Linear):
    def forward(self, inputs, targets=None):
        return super().forward(inputs)


def healthy_parameter_that_the_loss_reads_elsewhere() -> None:
    """The model gets the whole batch, and the loop computes the loss of it."""
    model, optimizer = start(WithTargets(8, 3))
    for inputs, classes, *_ in points(6):
        outputs = model(inputs, targets=classes)
        update(optimizer, nn.functional.cross_entropy(outputs, classes))


def measured():
    places = torch.randn(16, 8)
    energies = (places**2).sum(1)
    energies += 0.1 * torch.randn(16)
    return places, energies, -2 * places


def healthy_data_of_an_evaluation_that_needs_less() -> None:
    places, energies, forces = measured()
    valid_places, valid_energies, valid_forces = measured()
    model, optimizer = start(nn.Linear(8, 8))
    for _ in range(6):
        predicted = model(places)
        of_energies = nn.functional.mse_loss((predicted * places).sum(1), energies)
        update(optimizer, of_energies + nn.functional.mse_loss(predicted, forces))
    with torch.no_grad():
        assert nn.functional.mse_loss(model(valid_places), valid_forces) >= 0
