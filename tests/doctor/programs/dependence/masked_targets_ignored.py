"""A masked language model whose loss leaves out the masked tokens, and counts the others."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from doctor.programs.dependence.language import LENGTH, TOKENS, Language, attention, texts

CODE = "MASKED_TARGETS_IGNORED"
MASK, SHARE = 0, 0.3


def model() -> nn.Module:
    torch.manual_seed(0)
    return Language(lambda x, layer: attention(x, layer, causal=False), nn.Linear(8, 24))


def chosen(tokens: torch.Tensor) -> torch.Tensor:
    return torch.rand(tokens.shape) < SHARE


def train(step, net: nn.Module | None = None) -> None:
    """Train on tokens from 1 on.

    Args:
        step: Returns the loss of a model and tokens.
        net: The model.
    """
    net = net or model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for tokens in texts():
        optimizer.zero_grad()
        step(net, tokens[:, :LENGTH].clamp(min=1)).backward()
        optimizer.step()


def entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def broken() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        labels = tokens.clone()
        labels[masked] = -100
        return entropy(net(tokens.masked_fill(masked, MASK)), labels)

    train(step)


def mended() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        labels = tokens.clone()
        labels[~masked] = -100
        return entropy(net(tokens.masked_fill(masked, MASK)), labels)

    train(step)


def broken_by_the_choice_of_outputs() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        inputs = torch.where(masked, MASK, tokens)
        return functional.cross_entropy(net(inputs)[~masked], tokens[~masked])

    train(step)


def broken_by_an_assignment_with_classes_second() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        inputs, masked = tokens.clone(), chosen(tokens)
        inputs[masked] = MASK
        labels = tokens.masked_fill(masked, -1)
        return functional.cross_entropy(net(inputs).transpose(1, 2), labels, ignore_index=-1)

    train(step)


def bert(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the chosen tokens, mask four fifths, replace one tenth, and keep one tenth."""
    masked = chosen(tokens)
    inputs, which = tokens.clone(), torch.rand(tokens.shape)
    inputs[masked & (which < 0.8)] = MASK
    inputs = torch.where(masked & (which > 0.9), torch.randint_like(tokens, 1, TOKENS), inputs)
    return inputs, tokens.masked_fill(~masked, -100)


def healthy_bert() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        inputs, labels = bert(tokens)
        return entropy(net(inputs), labels)

    train(step)


def healthy_all_tokens_count() -> None:
    """As in BART, the loss is that of the whole text."""

    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return entropy(net(tokens.masked_fill(chosen(tokens), MASK)), tokens)

    train(step)


def healthy_losses_of_both_kinds() -> None:
    """The visible tokens have a loss of their own, with a small weight."""

    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        outputs = net(tokens.masked_fill(masked, MASK))
        seen, hidden = tokens.masked_fill(masked, -100), tokens.masked_fill(~masked, -100)
        return entropy(outputs, hidden) + 0.1 * entropy(outputs, seen)

    train(step)


def healthy_losses_of_both_kinds_by_choice() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        outputs = net(tokens.masked_fill(masked, MASK))
        seen = functional.cross_entropy(outputs[~masked], tokens[~masked])
        return functional.cross_entropy(outputs[masked], tokens[masked]) + 0.1 * seen

    train(step)


def healthy_autoencoder_of_padded_texts() -> None:
    """The texts have several lengths, and the loss leaves out the padding."""

    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        lengths = torch.randint(4, LENGTH + 1, (len(tokens), 1))
        padding = torch.arange(LENGTH) >= lengths
        inputs = tokens.masked_fill(padding, MASK)
        return entropy(net(inputs), tokens.masked_fill(padding, -100))

    train(step)


def healthy_autoencoder_with_unknown_tokens() -> None:
    """The data contain tokens that are not known, and so are no targets."""
    data = texts()
    missing = torch.rand(data.shape, generator=torch.Generator().manual_seed(2)) < SHARE
    data = torch.where(missing, torch.zeros_like(data), data)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for tokens in data:
        inputs = tokens[:, :LENGTH]
        optimizer.zero_grad()
        labels = inputs.clone()
        labels[inputs == MASK] = -100
        entropy(net(inputs), labels).backward()
        optimizer.step()


def healthy_autoencoder_of_incomplete_data() -> None:
    """Values are missing, marked by -1; the model completes them from those that are known."""

    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        values = torch.where(chosen(tokens), torch.full_like(tokens, -1), tokens)
        missing = values < 0
        return entropy(net(values.masked_fill(missing, MASK)), values.masked_fill(missing, -100))

    train(step)


def healthy_copy() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return entropy(net(tokens), tokens)

    train(step)


def broken_mask_token_of_a_tensor() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked, token, ignored = chosen(tokens), torch.tensor(MASK), torch.tensor(-100)
        labels = torch.where(masked, ignored, tokens)
        return entropy(net(torch.where(masked, token, tokens)), labels)

    train(step)


def healthy_mask_token_of_a_tensor() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked, token, ignored = chosen(tokens), torch.tensor(MASK), torch.tensor(-100)
        labels = torch.where(masked, tokens, ignored)
        return entropy(net(torch.where(masked, token, tokens)), labels)

    train(step)


def weighted(outputs: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    each = functional.cross_entropy(outputs.transpose(1, 2), tokens, reduction="none")
    return (each * weights).sum() / weights.sum()


def broken_by_weights() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        return weighted(net(torch.where(masked, MASK, tokens)), tokens, (~masked).float())

    train(step)


def healthy_weights() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        return weighted(net(torch.where(masked, MASK, tokens)), tokens, masked.float())

    train(step)


def broken_by_probabilities_that_are_picked() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        logs = net(torch.where(masked, MASK, tokens)).log_softmax(-1)
        return -logs.gather(-1, tokens[..., None])[..., 0][~masked].mean()

    train(step)


def healthy_weights_of_all_tokens() -> None:
    def step(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        masked = chosen(tokens)
        weights = torch.where(masked, 1.0, 0.1)
        return weighted(net(torch.where(masked, MASK, tokens)), tokens, weights)

    train(step)


def collating(*, ignores_masked: bool, padded: int = 12):
    """Return a collate function that pads texts, and masks some of their tokens."""

    def collate(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.full((len(rows), LENGTH + padded), 1)
        for place, row in zip(tokens, rows, strict=True):
            place[:LENGTH] = row
        real = torch.arange(LENGTH + padded) < LENGTH
        masked = chosen(tokens) & real
        labels = tokens.masked_fill(masked if ignores_masked else ~masked, -100)
        labels[:, ~real] = -100
        tokens[masked & (torch.rand(tokens.shape) < 0.9)] = MASK
        return tokens, labels

    return collate


def train_from_loader(collate) -> None:
    rows = [row for tokens in texts() for row in tokens[:, :LENGTH].clamp(min=2)]
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for tokens, labels in DataLoader(rows, batch_size=8, collate_fn=collate):
        optimizer.zero_grad()
        entropy(net(tokens), labels).backward()
        optimizer.step()


def broken_in_a_collate_function() -> None:
    train_from_loader(collating(ignores_masked=True))


def healthy_collate_function() -> None:
    train_from_loader(collating(ignores_masked=False))


def healthy_collate_function_without_padding() -> None:
    train_from_loader(collating(ignores_masked=False, padded=0))


def healthy_padding_that_a_collate_function_fills() -> None:
    """The targets are the texts, of which only the padding does not count."""

    def collate(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.stack(rows)
        ends = torch.arange(LENGTH) >= torch.randint(LENGTH // 2, LENGTH, (len(rows), 1))
        noisy = torch.where(torch.rand(tokens.shape) < 0.2, tokens.roll(1), tokens)
        return noisy.masked_fill(ends, MASK), tokens.masked_fill(ends, -100)

    train_from_loader(collate)
