"""The names of a checkpoint have another prefix than the module, and strict=False hides it."""

import io

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "STATE_NOT_LOADED"


class Wrapper(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(3, 3)

    def forward(self, images):
        return self.head(self.encoder(images))


def train(model, count: int = 10) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def without_prefix(state):
    return {name.removeprefix("encoder."): each for name, each in state.items()}


def pretrained() -> dict[str, torch.Tensor]:
    return train(Wrapper(classifier())).state_dict()


def broken() -> None:
    state = pretrained()
    encoder = classifier()
    encoder.load_state_dict(state, strict=False)
    train(encoder)


def mended() -> None:
    state = without_prefix(pretrained())
    encoder = classifier()
    encoder.load_state_dict(state, strict=False)
    train(encoder)


def broken_without_a_prefix() -> None:
    """The state is that of the encoder, and the module contains one."""
    state = train(classifier()).state_dict()
    model = Wrapper(classifier())
    model.load_state_dict(state, strict=False)
    train(model)


def broken_in_a_part_that_stays_frozen() -> None:
    state = pretrained()
    encoder = classifier()
    encoder.load_state_dict(state, strict=False)
    encoder.requires_grad_(requires_grad=False).eval()
    train(Wrapper(encoder))


def broken_by_a_wrapper_for_several_gpus() -> None:
    state = {f"module.{name}": each for name, each in train(classifier()).state_dict().items()}
    model = classifier()
    model.load_state_dict(state, strict=False)
    train(model)


def broken_by_the_whole_checkpoint() -> None:
    checkpoint = {"model": train(classifier()).state_dict(), "epoch": 3}
    model = classifier()
    model.load_state_dict(checkpoint, strict=False)
    train(model)


def broken_by_other_names() -> None:
    state = {f"layer{n}": each for n, each in enumerate(classifier().state_dict().values())}
    model = classifier()
    model.load_state_dict(state, strict=False)
    train(model)


def filtered(checkpoint, make=classifier) -> nn.Module:
    """Return a model with the weights of a file whose names it knows."""
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    loaded = torch.load(file)["model"]
    model = make()
    state = model.state_dict()
    state.update({name: each for name, each in loaded.items() if name in state})
    model.load_state_dict(state)
    return model


def broken_by_a_filter() -> None:
    train(filtered({"model": pretrained()}))


def broken_by_a_filter_for_a_model_without_buffers() -> None:
    def make() -> nn.Module:
        return nn.Linear(6, 3)

    train(filtered({"model": train(Wrapper(make())).state_dict()}, make))


def healthy_filter() -> None:
    train(filtered({"model": train(classifier()).state_dict()}))


def healthy_filter_of_another_file() -> None:
    train(filtered({"model": {"weight": torch.zeros(3), "bias": torch.zeros(3)}}))


def healthy_load_that_is_tried_again() -> None:
    state = pretrained()
    encoder = classifier()
    if encoder.load_state_dict(state, strict=False).missing_keys:
        encoder.load_state_dict(without_prefix(state), strict=False)
    train(encoder)


def healthy_load_into_the_part() -> None:
    state = train(classifier()).state_dict()
    model = Wrapper(classifier())
    model.load_state_dict(state, strict=False)
    model.encoder.load_state_dict(state)
    train(model)


def healthy_new_head() -> None:
    """The head is another one, and stays random on purpose."""
    state = {name: each for name, each in pretrained().items() if "head" not in name}
    model = Wrapper(classifier())
    model.load_state_dict(state, strict=False)
    train(model)


def healthy_part_of_a_state() -> None:
    """A state with few tensors, all of which the model has."""
    state = {f"head.{name}": each for name, each in nn.Linear(3, 3).state_dict().items()}
    model = Wrapper(classifier())
    model.load_state_dict(state, strict=False)
    train(model)


def healthy_state_that_is_empty() -> None:
    model = classifier()
    model.load_state_dict({}, strict=False)
    train(model)


def healthy_module_that_nothing_uses() -> None:
    classifier().load_state_dict(pretrained(), strict=False)
    train(classifier())


def file_of(state) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"weights": state, "epoch": 3}, file)
    file.seek(0)
    return file


@torch.no_grad()
def take_over(model, state) -> None:
    """Copy what the state and the model have in common."""
    for name, value in model.named_parameters():
        if name in state and state[name].shape == value.shape:
            value.copy_(state[name])


def by_hand(*, prefix: str = "", use: bool = True) -> None:
    state = train(classifier()).state_dict()
    file = file_of({prefix + name: each for name, each in state.items()})
    model = classifier()
    if use:
        take_over(model, torch.load(file)["weights"])
    else:
        assert torch.load(file)["epoch"] == 3
    train(model)


def broken_in_a_loop_over_the_names() -> None:
    by_hand(prefix="module.")


def healthy_loop_over_the_names() -> None:
    by_hand()


def healthy_loop_over_names_without_the_prefix() -> None:
    file = file_of(pretrained())
    model = classifier()
    take_over(model, without_prefix(torch.load(file)["weights"]))
    train(model)


def healthy_file_of_which_only_the_epoch_is_read() -> None:
    by_hand(use=False)


def healthy_look_at_a_file_after_the_training() -> None:
    model = train(classifier())
    file = file_of({f"module.{name}": each for name, each in model.state_dict().items()})
    torch.load(file)
