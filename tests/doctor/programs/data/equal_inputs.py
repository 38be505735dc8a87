"""Two views of a batch are augmented with the same random numbers."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from doctor.loops import batches

CODE = "EQUAL_INPUTS"


def encoder(*, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 4))


def contrast(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    scores = functional.normalize(one) @ functional.normalize(other).T / 0.5
    return functional.cross_entropy(scores, torch.arange(len(one)))


def noise(like: torch.Tensor, seed: int | None = None) -> torch.Tensor:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator) * 0.1


def train(views, *, count: int = 10, joined: bool = False, dropout: float = 0.0) -> None:
    model = encoder(dropout=dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number, (images, _) in enumerate(batches(count)):
        one, other = views(images, number)
        if joined:
            ones, others = model(torch.cat([one, other])).chunk(2)
        else:
            ones, others = model(one), model(other)
        optimizer.zero_grad()
        contrast(ones, others).backward()
        optimizer.step()


def with_one_seed(images: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return images + noise(images, number), images + noise(images, number)


def with_two_seeds(images: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return images + noise(images, 2 * number), images + noise(images, 2 * number + 1)


def broken() -> None:
    train(with_one_seed)


def mended() -> None:
    train(with_two_seeds)


def broken_in_a_joined_batch() -> None:
    train(with_one_seed, joined=True)


class Views:
    """Samples with two views.

    Args:
        shared: Whether both views have one seed.
    """

    def __init__(self, *, shared: bool) -> None:
        self.images = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
        self.shared = shared

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        second = index if self.shared else index + 1000
        return image + noise(image, index), image + noise(image, second)


def from_loader(*, shared: bool) -> None:
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for one, other in DataLoader(Views(shared=shared), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        contrast(model(one), model(other)).backward()
        optimizer.step()


def broken_in_a_data_set() -> None:
    from_loader(shared=True)


def healthy_data_set() -> None:
    from_loader(shared=False)


def q_learning(*, copies: bool) -> None:
    """The environment changes its state in place, and the memory keeps it without a copy."""
    rng = np.random.default_rng(0)
    online = encoder()
    target = copy.deepcopy(online)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.01)
    memory, state = [], rng.normal(size=6).astype(np.float32)
    for _ in range(64):
        before = state.copy() if copies else state
        state += 0.1 * rng.normal(size=6).astype(np.float32)
        after = state.copy()
        memory.append((before if copies else after, after))
    for _ in range(10):
        chosen = [memory[each] for each in rng.integers(64, size=8)]
        states = torch.as_tensor(np.stack([each for each, _ in chosen]))
        following = torch.as_tensor(np.stack([each for _, each in chosen]))
        values = online(states).max(1).values
        with torch.no_grad():
            goal = 1 + 0.9 * target(following).max(1).values
        optimizer.zero_grad()
        functional.smooth_l1_loss(values, goal).backward()
        optimizer.step()


def broken_in_a_replay_memory() -> None:
    q_learning(copies=False)


def q_learning_on_rows(*, columns: slice, copies: bool = False) -> None:
    """A memory with one row for each transition: the state, and from column 6 on the next one."""
    torch.manual_seed(0)
    online = encoder()
    target = copy.deepcopy(online)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.01)
    states = torch.randn(65, 6)
    memory = torch.cat([states[:-1] if copies else states[1:], states[1:]], 1)
    for _ in range(10):
        rows = memory[torch.randint(64, (8,))]
        values = online(rows[:, :6]).max(1).values
        with torch.no_grad():
            goal = 1 + 0.9 * target(rows[:, columns]).max(1).values
        optimizer.zero_grad()
        functional.smooth_l1_loss(values, goal).backward()
        optimizer.step()


def broken_in_a_row_of_a_memory() -> None:
    q_learning_on_rows(columns=slice(6, 12))


def healthy_row_of_a_memory() -> None:
    q_learning_on_rows(columns=slice(6, 12), copies=True)


def healthy_same_columns_of_a_row() -> None:
    q_learning_on_rows(columns=slice(0, 6), copies=True)


def broken_for_a_momentum_encoder() -> None:
    def augmented(images, seed):
        return images + noise(images, seed)

    online = encoder()
    target = copy.deepcopy(online).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.05)
    for number, (images, _) in enumerate(batches(10)):
        with torch.no_grad():
            keys = target(augmented(images, number))
        queries = online(augmented(images, number))
        optimizer.zero_grad()
        contrast(queries, keys).backward()
        optimizer.step()


def healthy_replay_memory() -> None:
    q_learning(copies=True)


def healthy_same_tensor_twice() -> None:
    train(lambda images, _: (images, images))


def healthy_copies_with_dropout() -> None:
    train(lambda images, _: (images, images.clone()), dropout=0.2)


def healthy_copies_of_one_tensor() -> None:
    train(lambda images, _: (images.clone(), images.double().float()))


def healthy_same_rows_twice() -> None:
    def views(images, _):
        order = torch.randperm(len(images))
        return images[order], images[order]

    train(views)


def healthy_joined_with_itself() -> None:
    train(lambda images, _: (images, images.clone()), joined=True)


def healthy_inputs_without_content() -> None:
    train(lambda images, _: (torch.ones(8, 6), torch.full((8, 6), 1.0)))


def healthy_views_that_are_equal_at_first() -> None:
    def views(images, number):
        return images, images + noise(images) * (number > 3)

    train(views, count=12)


def healthy_teacher_with_a_batch_of_its_own() -> None:
    """A student and its teacher get the same array, each as a tensor of its own."""
    student = encoder()
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    for images, labels in batches(10):
        array = images.numpy()
        with torch.no_grad():
            goal = teacher(torch.tensor(array))
        outputs = student(torch.tensor(array))
        optimizer.zero_grad()
        loss = functional.cross_entropy(outputs, labels) + functional.mse_loss(outputs, goal)
        loss.backward()
        optimizer.step()


def healthy_teacher_with_an_old_constructor() -> None:
    student = encoder()
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    for images, _ in batches(10):
        array = images.numpy()
        with torch.no_grad():
            goal = teacher(torch.FloatTensor(array + 0))
        outputs = student(torch.FloatTensor(array + 0))
        optimizer.zero_grad()
        functional.mse_loss(outputs + 0.1 * outputs.square(), goal).backward()
        optimizer.step()


def healthy_second_call_for_a_penalty() -> None:
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(10):
        numbers = images.numpy()
        loss = functional.cross_entropy(model(torch.FloatTensor(numbers + 0)), labels)
        penalty = model(torch.FloatTensor(numbers + 0)).square().mean()
        optimizer.zero_grad()
        (loss + 0.01 * penalty).backward()
        optimizer.step()


def healthy_teacher_with_images_of_the_data_set() -> None:
    student = encoder()
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    for one, other in DataLoader(Views(shared=True), batch_size=8, shuffle=True):
        with torch.no_grad():
            goal = teacher(one)
        outputs = student(other)
        optimizer.zero_grad()
        functional.mse_loss(outputs + 0.1 * outputs.square(), goal).backward()
        optimizer.step()


def healthy_micro_batches_of_one_batch() -> None:
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    images, labels = next(batches(1))
    for _ in range(10):
        optimizer.zero_grad()
        for _ in range(2):
            (functional.cross_entropy(model(torch.tensor(images.tolist())), labels) / 2).backward()
        optimizer.step()


class Pair(nn.Module):
    """An encoder with a loss of two views."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return contrast(self.encoder(one), self.encoder(other))


def train_pair(views) -> None:
    model = Pair()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number, (images, _) in enumerate(batches(10)):
        optimizer.zero_grad()
        model(*views(images, number)).backward()
        optimizer.step()


def broken_views_in_one_call() -> None:
    train_pair(with_one_seed)


def healthy_views_in_one_call() -> None:
    train_pair(with_two_seeds)


def healthy_one_view_twice_in_one_call() -> None:
    def views(images: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        view = images + noise(images, number)
        return view, view.clone()

    train_pair(views)


def from_pairs(loss_of, *, dropout: float = 0.0) -> None:
    """Train on the two views of a data set, with `loss_of(model, one, other)`."""
    model = encoder(dropout=dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in DataLoader(Views(shared=False), batch_size=8, shuffle=True):
        one, other = (each.to("cpu", copy=True) for each in batch)
        optimizer.zero_grad()
        loss_of(model, one, other).backward()
        optimizer.step()


def one_view_twice(model: nn.Module, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    del other
    return contrast(model(one), model(one))


def broken_by_one_view_of_a_batch_twice() -> None:
    from_pairs(one_view_twice)


def broken_by_one_view_of_a_batch_in_both_halves() -> None:
    from_pairs(lambda model, one, _: contrast(*model(torch.cat([one, one])).chunk(2)))


def healthy_both_views_of_a_batch() -> None:
    from_pairs(lambda model, one, other: contrast(model(one), model(other)))


def healthy_one_view_twice_with_dropout() -> None:
    from_pairs(one_view_twice, dropout=0.2)


def healthy_other_view_as_the_target() -> None:
    def loss_of(model: nn.Module, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        penalty = model(one).square().mean()
        return functional.mse_loss(model(one), other[:, :4]) + 0.01 * penalty

    from_pairs(loss_of)


def healthy_one_view_with_a_noisy_model() -> None:
    class Noisy(nn.Module):
        """Draws a code for each sample."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            code = self.encoder(inputs)
            return code + 0.1 * torch.randn_like(code)

    model = Noisy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for one, _ in DataLoader(Views(shared=False), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        contrast(model(one), model(one)).backward()
        optimizer.step()


def healthy_second_call_for_an_accuracy() -> None:
    """The second image of a sample is not needed, and neither is the graph of the second call."""

    def loss_of(model: nn.Module, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        del other
        labels = one[:, :4].argmax(1)
        (model(one).argmax(1) == labels).float().mean()
        return functional.cross_entropy(model(one), labels)

    from_pairs(loss_of)


def healthy_other_view_in_a_second_backward() -> None:
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for one, other in DataLoader(Views(shared=False), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        contrast(model(one), model(one)).backward()
        functional.mse_loss(model(other), other[:, :4]).backward()
        optimizer.step()


def train_on_texts(views) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 8), nn.Flatten(), nn.Linear(8 * 40, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        one, other = views(torch.randint(2, 40, (8, 40)))
        optimizer.zero_grad()
        contrast(model(one), model(other)).backward()
        optimizer.step()


def masked(tokens: torch.Tensor) -> torch.Tensor:
    tokens[torch.rand(tokens.shape) < 0.3] = 1
    return tokens


def broken_by_views_in_place() -> None:
    train_on_texts(lambda tokens: (masked(tokens), masked(tokens)))


def broken_by_texts_that_are_cut() -> None:
    """The prompt fills the length, so nothing is left of the two answers."""

    def answered(prompts: torch.Tensor) -> torch.Tensor:
        answers = torch.randint(2, 40, (8, 5))
        return torch.cat([prompts, answers], 1)[:, :40].contiguous()

    train_on_texts(lambda prompts: (answered(prompts), answered(prompts)))


def healthy_views_of_copies() -> None:
    train_on_texts(lambda tokens: (masked(tokens.clone()), masked(tokens.clone())))


def healthy_texts_that_differ_in_one_token() -> None:
    def answered(prompts: torch.Tensor) -> torch.Tensor:
        return torch.cat([prompts[:, :39], torch.randint(2, 40, (8, 1))], 1)

    train_on_texts(lambda prompts: (answered(prompts), answered(prompts)))


def healthy_view_in_place_twice() -> None:
    """Two spans are masked in one view; the other view is the text as it is."""
    train_on_texts(lambda tokens: (tokens.clone(), masked(masked(tokens))))


def healthy_texts_in_two_calls() -> None:
    """A second call with the same text, for a penalty, changes nothing of it."""
    train_on_texts(lambda tokens: (tokens, tokens))


def train_on_preferences(loss_of) -> None:
    """Prefer answers, against a frozen copy of the model."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Embedding(40, 8), nn.Flatten(), nn.Linear(8 * 12, 1))
    reference = copy.deepcopy(policy).requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)

    def score(model: nn.Module, prompts: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        return model(torch.cat([prompts, answers], 1))

    for _ in range(10):
        prompts, chosen, rejected = torch.randint(40, (3, 8, 6))
        optimizer.zero_grad()
        loss_of(score, policy, reference, prompts, chosen, rejected).backward()
        optimizer.step()


def healthy_preferences_against_a_reference() -> None:
    def loss_of(score, policy, reference, prompts, chosen, rejected):
        with torch.no_grad():
            base = score(reference, prompts, chosen) - score(reference, prompts, rejected)
        margin = score(policy, prompts, chosen) - score(policy, prompts, rejected)
        return -functional.logsigmoid(margin - base).mean()

    train_on_preferences(loss_of)


def healthy_chosen_answer_twice() -> None:
    """The chosen answer also has a loss of its own."""

    def loss_of(score, policy, _, prompts, chosen, rejected):
        margin = score(policy, prompts, chosen) - score(policy, prompts, rejected)
        return -functional.logsigmoid(margin).mean() - 0.1 * score(policy, prompts, chosen).mean()

    train_on_preferences(loss_of)
