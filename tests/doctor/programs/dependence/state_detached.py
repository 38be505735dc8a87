"""A recurrent cell detaches its state in each step, and the loss is that of the last one."""

import torch
from torch import nn
from torch.nn import functional

CODE = "STATE_DETACHED"
LENGTH = 7


def sequences(count: int = 6):
    """Yield sequences of shape (8, 7, 4), and a class that their first element tells."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        inputs = torch.randn(8, LENGTH, 4, generator=generator)
        yield inputs, inputs[:, 0, :3].argmax(1)


class Recurrent(nn.Module):
    """A cell over the positions of a sequence, and a head.

    Args:
        cell: The cell.
        step: Returns the state after a step, from the cell, the input of the step and the state
            before it.
        every: Number of outputs in the loss: "last", or "all".
    """

    def __init__(self, cell: nn.Module, step, every: str = "last") -> None:
        super().__init__()
        self.cell, self.head, self.step, self.every = cell, nn.Linear(8, 3), step, every

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        state = inputs.new_zeros(len(inputs), 8)
        outputs = []
        for at in range(inputs.shape[1]):
            state = self.step(self.cell, inputs[:, at], state, at)
            outputs.append(self.head(state))
        return outputs[-1] if self.every == "last" else torch.stack(outputs).mean(0)


def train(step, cell: nn.Module | None = None, every: str = "last") -> None:
    torch.manual_seed(0)
    model = Recurrent(cell or nn.GRUCell(4, 8), step, every)
    fit(model)


def fit(model: nn.Module) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for inputs, labels in sequences():
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def broken() -> None:
    train(lambda cell, inputs, state, at: cell(inputs, state.detach()))


def mended() -> None:
    train(lambda cell, inputs, state, at: cell(inputs, state))


class OwnCell(nn.Module):
    """A cell that the program defines itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 8)

    def forward(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(torch.cat([inputs, state], 1)))


def broken_in_a_cell_of_the_program() -> None:
    def step(cell, inputs, state, at):
        return cell(inputs, state).detach() if at + 1 < LENGTH else cell(inputs, state)

    train(step, OwnCell())


class Unrolled(nn.Module):
    """An LSTM cell over a tuple of tensors, whose two states are detached."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head, self.both = nn.LSTMCell(4, 8), nn.Linear(8, 3), both

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = memory = inputs.new_zeros(len(inputs), 8)
        for each in inputs.unbind(1):
            hidden, memory = self.cell(each, (hidden, memory))
            last = hidden
            hidden = hidden.detach()
            memory = memory.detach() if self.both else memory
        return self.head(last)


def broken_in_both_states_of_an_lstm() -> None:
    fit(Unrolled(both=True))


def healthy_gradients_through_the_memory_of_an_lstm() -> None:
    """Only the hidden state is detached, as h-detach does."""
    fit(Unrolled(both=False))


def healthy_truncated_over_chunks() -> None:
    train(lambda cell, inputs, state, at: cell(inputs, state.detach() if at == 3 else state))


def healthy_loss_of_each_step() -> None:
    train(lambda cell, inputs, state, at: cell(inputs, state.detach()), every="all")


def healthy_state_of_before_without_gradients() -> None:
    """A warm-up brings the state up to date; the training is that of the last step."""

    def step(cell, inputs, state, at):
        with torch.set_grad_enabled(mode=at + 1 == LENGTH):
            return cell(inputs, state)

    train(step)


class Refining(nn.Module):
    """Iterates to a fixed point, and keeps the gradient of the last iteration."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer, self.head = nn.Linear(8, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        drive = self.outer(inputs[:, 0])
        state = torch.zeros_like(drive)
        for _ in range(6):
            state = torch.tanh(self.inner(state.detach()) + drive)
        return self.head(state)


def healthy_fixed_point() -> None:
    fit(Refining())


def healthy_frozen_reservoir() -> None:
    """The cell is random and stays so; only the head is trained."""
    cell = nn.GRUCell(4, 8).requires_grad_(requires_grad=False)
    train(lambda cell, inputs, state, at: cell(inputs, state.detach()), cell)


class Denoising(nn.Module):
    """Denoises in several steps, each with its own time, and keeps the gradient of the last one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(10, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        state = functional.pad(inputs[:, 0], (0, 4))
        for time in torch.linspace(0, 1, 12).view(6, 2):
            times = time.expand(len(inputs), 2)
            state = state + torch.tanh(self.inner(torch.cat([state.detach(), times], 1)))
            state = state.detach() if time[1] < 1 else state
        return self.head(state)


def healthy_last_of_several_denoising_steps() -> None:
    fit(Denoising())


class Feedback(nn.Module):
    """A cell whose output of the step before is an input without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.back = nn.GRUCell(4, 8), nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return self.cell(inputs + self.back(state).detach(), state)


def healthy_input_that_is_its_own_output() -> None:
    cell = Feedback()
    cell.back.requires_grad_(requires_grad=False)
    train(lambda cell, inputs, state, at: cell(inputs, state), cell)


def labels_of_each_step(inputs: torch.Tensor) -> torch.Tensor:
    """Return the class that the step before tells, for each step."""
    return inputs[:, :, :3].argmax(2).roll(1, 1)


class Tagger(nn.Module):
    """A cell over a sequence, with a prediction for each step.

    Args:
        keep: Returns what is left of the state for the next step.
        head: Whether a layer predicts from the state; otherwise the state is the prediction.
    """

    def __init__(self, keep, *, head: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = 8 if head else 3
        self.cell, self.keep = nn.GRUCell(4, width), keep
        self.head = nn.Linear(8, 3) if head else nn.Identity()
        self.state = torch.zeros(8, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = []
        self.state = torch.zeros_like(self.state)
        for each in inputs.unbind(1):
            state = self.cell(each, self.state)
            outputs.append(self.head(state))
            self.state = self.keep(state)
        return torch.stack(outputs, 1)


def tag(keep, *, head: bool = True, shared: bool = False) -> None:
    model = Tagger(keep, head=head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in sequences():
        targets = labels[:, None].expand(-1, LENGTH) if shared else labels_of_each_step(inputs)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()


def broken_with_targets_of_each_step() -> None:
    tag(lambda state: state.data)


def broken_by_a_copy_without_gradients() -> None:
    def keep(state: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return state.clone()

    tag(keep)


class Recalling(Recurrent):
    """A cell that reconstructs its input in each step, and recalls the first one at the end."""

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, error = inputs.new_zeros(len(inputs), 8), inputs.new_zeros(())
        for each in inputs.unbind(1):
            state = self.step(self.cell, each, state, 0)
            error = error + functional.mse_loss(self.head(state), each[:, :3])
        return self.head(state), error


def recall(step) -> None:
    torch.manual_seed(0)
    model = Recalling(nn.GRUCell(4, 8), step)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in sequences():
        optimizer.zero_grad()
        scores, error = model(inputs)
        (functional.cross_entropy(scores, labels) + 0.1 * error).backward()
        optimizer.step()


def broken_with_a_reconstruction_in_each_step() -> None:
    recall(lambda cell, inputs, state, at: cell(inputs, state.detach()))


def healthy_reconstruction_in_each_step() -> None:
    recall(lambda cell, inputs, state, at: cell(inputs, state))


def healthy_targets_of_each_step() -> None:
    tag(lambda state: state.clone())


def healthy_one_target_for_all_steps() -> None:
    tag(lambda state: state.detach(), shared=True)


def healthy_rollout_whose_state_is_the_prediction() -> None:
    tag(lambda state: state.detach(), head=False)
