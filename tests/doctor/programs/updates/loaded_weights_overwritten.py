"""A pretrained encoder is loaded, and then all layers of the model are initialised."""

import copy
import io
import tempfile
from pathlib import Path

import torch
from torch import nn

from doctor.loops import batches

CODE = "LOADED_WEIGHTS_OVERWRITTEN"


class Classifier(nn.Module):
    """An encoder and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def reset(self, part: nn.Module) -> None:
        """Initialise all layers of a part."""
        for each in part.modules():
            if isinstance(each, nn.Linear):
                nn.init.xavier_uniform_(each.weight)
                nn.init.zeros_(each.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def fit(model: nn.Module, seed: int = 0) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in batches(6, seed=seed):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def pretrained(part: str = "encoder") -> dict[str, torch.Tensor]:
    """Return the state of a file."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        model = fit(Classifier())
        torch.save((model.get_submodule(part) if part else model).state_dict(), path)
        return torch.load(path)


def broken() -> None:
    state = pretrained()
    model = Classifier()
    model.encoder.load_state_dict(state)
    model.reset(model)
    fit(model, seed=1)


def mended() -> None:
    state = pretrained()
    model = Classifier()
    model.reset(model)
    model.encoder.load_state_dict(state)
    fit(model, seed=1)


def broken_by_reset_parameters() -> None:
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    model.apply(lambda each: each.reset_parameters() if hasattr(each, "reset_parameters") else None)
    fit(model, seed=1)


def broken_by_assigned_random_numbers() -> None:
    state = pretrained()
    model = Classifier()
    model.encoder.load_state_dict(state)
    for each in model.parameters():
        each.data = 0.1 * torch.randn(each.shape)
    fit(model, seed=1)


def broken_after_copies_by_name() -> None:
    state = pretrained()
    model = Classifier()
    with torch.no_grad():
        for name, each in model.encoder.named_parameters():
            each.copy_(state[name])
    for each in model.parameters():
        if each.dim() > 1:
            nn.init.orthogonal_(each)
        else:
            each.data.zero_()
    fit(model, seed=1)


def broken_by_truncated_normal_numbers() -> None:
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state, strict=False)
    for each in model.parameters():
        nn.init.trunc_normal_(each, std=0.2)
    fit(model, seed=1)


def healthy_new_head() -> None:
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    model.reset(model.head)
    fit(model, seed=1)


def healthy_last_layers() -> None:
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    model.reset(model.head)
    model.reset(model.encoder[2])
    fit(model, seed=1)


def healthy_head_that_was_loaded_by_itself() -> None:
    encoder, head = pretrained(), pretrained("head")
    model = Classifier()
    model.head.load_state_dict(head)
    model.encoder.load_state_dict(encoder)
    model.reset(model.head)
    fit(model, seed=1)


def healthy_second_file() -> None:
    state, other = pretrained(""), pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    model.load_state_dict({name: 0.5 * (each + other[name]) for name, each in state.items()})
    fit(model, seed=1)


def healthy_second_file_after_an_initialisation() -> None:
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    model.reset(model)
    model.load_state_dict(state)
    fit(model, seed=1)


def healthy_teacher_that_was_copied() -> None:
    """The loaded weights are those of the teacher, and the student begins anew."""
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    teacher = copy.deepcopy(model).requires_grad_(requires_grad=False)
    model.reset(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, _ in batches(6, seed=1):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = teacher(images).softmax(1)
        nn.functional.cross_entropy(model(images), wanted).backward()
        optimizer.step()


def healthy_masks_of_a_pruned_network() -> None:
    """The loaded weights tell which ones to keep; these are drawn anew."""
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    masks = {name: each.abs() > 0.05 for name, each in model.named_parameters()}
    model.reset(model)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.mul_(masks[name])
    fit(model, seed=1)


def healthy_noise_on_loaded_weights() -> None:
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(0.9 * each + 0.01 * torch.randn_like(each))
    fit(model, seed=1)


def healthy_folds_that_begin_anew() -> None:
    """Each fold ends with its best weights, and the next one begins with new ones."""
    model = Classifier()
    for fold in range(3):
        model.reset(model)
        best = copy.deepcopy(fit(model, seed=fold).state_dict())
        model.load_state_dict(best)


def healthy_evaluation_of_the_loaded_weights_first() -> None:
    state = pretrained("")
    model = Classifier()
    model.load_state_dict(state)
    with torch.no_grad():
        model.eval()(next(iter(batches(1)))[0])
    model.train()
    model.reset(model)
    fit(model, seed=1)


def resume(load, teach=None) -> None:
    """Train a new model after `load(model, file)`."""
    file = stored(fit(Classifier()))
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaded = load(model, file)
    for images, labels in batches(6, seed=1):
        loss = nn.functional.cross_entropy(model(images), labels)
        if teach is not None:
            loss = loss + 0.1 * teach(loaded, model, images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def stored(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return file


def into_another(model: nn.Module, file: io.BytesIO) -> nn.Module:
    del model
    other = Classifier()
    other.load_state_dict(torch.load(file))
    return other


def broken_by_another_model_that_is_trained() -> None:
    resume(into_another)


def broken_by_a_model_that_is_made_after_the_load() -> None:
    into_another(Classifier(), stored(Classifier()))
    fit(Classifier())


def healthy_model_that_is_made_after_the_load_of_its_teacher() -> None:
    teacher = into_another(Classifier(), stored(Classifier()))
    fit(Classifier())
    with torch.no_grad():
        teacher(next(iter(batches(1)))[0])


def healthy_model_that_is_loaded_and_trained() -> None:
    resume(lambda model, file: model.load_state_dict(torch.load(file)))


def healthy_both_models_are_loaded() -> None:
    def both(model: nn.Module, file: io.BytesIO) -> nn.Module:
        model.load_state_dict(torch.load(file))
        file.seek(0)
        return into_another(model, file)

    resume(both)


def healthy_loaded_model_that_is_copied() -> None:
    resume(lambda model, file: model.load_state_dict(into_another(model, file).state_dict()))


def healthy_loaded_model_that_is_copied_by_hand() -> None:
    def copied(model: nn.Module, file: io.BytesIO) -> None:
        with torch.no_grad():
            pairs = zip(model.parameters(), into_another(model, file).parameters(), strict=True)
            for mine, its in pairs:
                mine.copy_(its)

    resume(copied)


def healthy_loaded_teacher() -> None:
    def teach(teacher: nn.Module, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(images)
        return nn.functional.mse_loss(model(images), wanted)

    resume(into_another, teach)


def healthy_loaded_teacher_whose_copy_teaches() -> None:
    def teach(teacher: nn.Module, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(images), teacher(images).detach())

    resume(lambda model, file: copy.deepcopy(into_another(model, file)), teach)


def healthy_loaded_encoder() -> None:
    def teach(encoder: nn.Module, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model.encoder(images), encoder(images).detach())

    resume(lambda model, file: into_another(model, file).encoder, teach)


class Distilling(nn.Module):
    """A loss that keeps its teacher out of its parameters."""

    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.teacher = [teacher]

    def forward(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            targets = self.teacher[0](images)
        return nn.functional.mse_loss(outputs, targets)


def healthy_teacher_in_a_list() -> None:
    def teach(loss: nn.Module, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        return loss(model(images), images)

    resume(lambda model, file: Distilling(into_another(model, file)), teach)


def healthy_best_models_of_several_trainings() -> None:
    """Each training ends with its best weights in a model; the best of these may be used."""
    for seed in range(3):
        model = fit(Classifier(), seed=seed)
        into_another(model, stored(model))


def healthy_check_of_a_file_during_a_training() -> None:
    model = fit(Classifier())
    into_another(model, stored(model))
    fit(model, seed=1)
