"""A loop evaluates after each epoch, and never calls `train()` again."""

import copy

import torch
from torch import nn

from doctor.loops import Inner, batches, classifier, half_autocast, loss_of

CODE = "LEFT_IN_EVALUATION_MODE"


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad(), half_autocast():
        for images, _ in batches(2):
            model(images)


def train(model: nn.Module, mode_of, *, called: nn.Module | None = None, epochs: int = 3) -> None:
    """Train for some epochs; `mode_of(epoch)` is the mode at the start, or None to leave it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for epoch in range(epochs):
        mode = mode_of(epoch)
        if mode is not None:
            model.train(mode)
        for images, labels in batches(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(called or model, images, labels)).backward()
            scaler.step(optimizer)
            scaler.update()
        evaluate(model)


def broken() -> None:
    train(classifier(), lambda epoch: None)


def mended() -> None:
    train(classifier(), lambda epoch: True)


def broken_in_a_wrapped_model() -> None:
    """Only the wrapped model is evaluated, and the wrapper stays in training mode."""
    model = classifier()
    train(model, lambda epoch: None, called=Inner(model))


def broken_by_evaluations_within_epochs() -> None:
    """Each epoch begins in training mode, and continues in evaluation mode."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        model.train()
        for number, (images, labels) in enumerate(batches(8)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if number == 3:
                evaluate(model)


def broken_after_an_evaluation_before_training() -> None:
    model = classifier()
    evaluate(model)
    train(model, lambda epoch: True if epoch == 0 else None)


def broken_in_a_recurrent_model() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(6, 8, 2, dropout=0.5, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):  # oneDNN has no LSTM in fp16
                states, _ = self.cells(images[:, None].repeat(1, 3, 1))
                return self.head(states[:, -1])

    torch.manual_seed(0)
    train(Recurrent(), lambda epoch: None)


def broken_with_another_optimizer_in_each_epoch() -> None:
    model = classifier()
    for _ in range(3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for images, labels in batches(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        evaluate(model)


def broken_in_a_generator() -> None:
    """The generator steps in an iteration that begins after its forward pass."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    critic = nn.Linear(6, 1)
    optimizers = [torch.optim.Adam(each.parameters()) for each in (critic, generator)]
    for _ in range(2):
        for images, _ in batches(4):
            made = generator(torch.randn(8, 4))
            losses = critic(made.detach()).mean() - critic(images).mean(), -critic(made).mean()
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.backward(retain_graph=True, inputs=optimizer.param_groups[0]["params"])
            for optimizer in optimizers:
                optimizer.step()
        generator.eval()
        with torch.no_grad():
            generator(torch.randn(8, 4))


def train_through(model: nn.Module, given: nn.Module, loss_of_outputs) -> None:
    """Train a model, evaluate it, and train another one in steps that call it, too."""
    train(model, lambda epoch: None, epochs=1)
    optimizer = torch.optim.SGD(given.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss_of_outputs(model, given, images, labels).backward()
        optimizer.step()


def healthy_teacher() -> None:
    def loss_of_outputs(teacher, student, images, labels):
        return nn.functional.mse_loss(student(images), teacher(images).detach())

    train_through(classifier(), nn.Linear(6, 3), loss_of_outputs)


def healthy_input_that_is_trained_through_a_model() -> None:
    def loss_of_outputs(model, patch, images, labels):
        return nn.functional.cross_entropy(model(patch(images)), labels)

    train_through(classifier(), nn.Linear(6, 6), loss_of_outputs)


def healthy_in_evaluation_mode_from_the_start() -> None:
    train(classifier(), lambda epoch: False)


def healthy_that_freezes_its_norms_in_the_last_epoch() -> None:
    train(classifier(), lambda epoch: epoch < 2)


def healthy_that_freezes_its_norms_without_an_evaluation() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(8)):
        model.train(number < 4)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_without_modules_that_change() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Dropout(0.0), nn.Linear(16, 3))
    train(model, lambda epoch: None)


def healthy_evaluation_at_the_end() -> None:
    train(classifier(), lambda epoch: None, epochs=1)


def healthy_last_step_in_evaluation_mode() -> None:
    """Only one step follows the evaluation, so it may be a test of the loop."""
    model = classifier()
    train(model, lambda epoch: None, epochs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(1):
        loss_of(model, images, labels).backward()
        optimizer.step()


def healthy_virtual_adversary() -> None:
    """Each step of the second epoch predicts and perturbs in evaluation mode before it trains."""
    model = classifier()
    train(model, lambda epoch: None, epochs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        model.eval()
        with torch.no_grad():
            predicted = model(images).softmax(1)
        images.requires_grad_()
        loss = nn.functional.cross_entropy(model(images), predicted)
        (direction,) = torch.autograd.grad(loss, images)
        model.train()
        optimizer.zero_grad()
        given = (images + 0.01 * direction.sign()).detach()
        nn.functional.cross_entropy(model(given), labels).backward()
        optimizer.step()


def distil(prepare, *, start: bool = True) -> None:
    """Train a model that is also its own teacher; `prepare(model)` runs before each step."""
    model = classifier()
    model.append(nn.Dropout(0.1))
    teacher = model
    if start:
        model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(8):
        prepare(teacher)
        with torch.no_grad():
            soft = teacher(images).softmax(1)
        outputs = model(images)
        loss = nn.functional.cross_entropy(outputs, labels)
        loss = loss - (soft * outputs.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken_by_a_teacher_that_is_the_model() -> None:
    distil(lambda teacher: teacher.eval())


def broken_by_a_teacher_that_is_the_model_from_the_start() -> None:
    distil(lambda teacher: teacher.eval(), start=False)


def broken_by_a_sample_before_each_step() -> None:
    """The policy acts in evaluation mode, and the update forgets training mode."""
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, _ in batches(6):
        model.train(mode=False)
        with torch.no_grad():
            actions = model(images).softmax(1).multinomial(1).squeeze(1)
        loss = nn.functional.cross_entropy(model(images), actions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken_by_a_validation_in_each_step() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for images, labels in batches(6):
        evaluate(model)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_self_critical() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        model.eval()
        with torch.no_grad():
            baseline = model(images).argmax(1)
        model.train()
        weight = (baseline != labels).float() + 0.1
        losses = nn.functional.cross_entropy(model(images), labels, reduction="none")
        optimizer.zero_grad()
        (weight * losses).mean().backward()
        optimizer.step()


def healthy_frozen_backbone() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
    head = nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 3))
    backbone.eval()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    for images, labels in batches(8):
        with torch.no_grad():
            features = backbone(images)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), labels).backward()
        optimizer.step()


def healthy_teacher_that_is_an_average() -> None:
    model = classifier()
    teacher = copy.deepcopy(model).eval()
    for each in teacher.parameters():
        each.requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(8):
        with torch.no_grad():
            soft = teacher(images)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss = loss + nn.functional.mse_loss(model(images), soft)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, other in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(other, 0.1)
            for mine, other in zip(teacher.buffers(), model.buffers(), strict=True):
                mine.copy_(other)


def healthy_baseline_before_fine_tuning_in_evaluation_mode() -> None:
    model = classifier()
    evaluate(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(8):  # with the running statistics of the first training
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken_by_an_evaluation_before_the_first_epoch() -> None:
    """Each evaluation sets its mode, also the first one, and nothing sets training mode."""
    model = classifier()
    evaluate(model)
    train(model, lambda epoch: None)


def train_plainly(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def train_in_parts(switch, count: int = 3) -> None:
    """Evaluate in evaluation mode after each epoch, and call `switch(model, epoch)` before it."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))
    for epoch in range(count):
        switch(model, epoch)
        train_plainly(model)
        model.eval()
        with torch.no_grad():
            model(torch.zeros(4, 6))


def broken_in_a_part() -> None:
    def switch(model, epoch) -> None:
        (model if epoch == 0 else model[:2]).train()

    train_in_parts(switch)


def healthy_norms_that_keep_their_statistics() -> None:
    def switch(model, epoch) -> None:
        model.train()
        if epoch:
            model[1].eval()

    train_in_parts(switch)


def healthy_norms_with_their_first_statistics() -> None:
    train_plainly(classifier().eval())


def healthy_dropout_that_is_off() -> None:
    train_plainly(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3)).eval())


class Listed(nn.Module):
    """A wrapper with its model in a list, which `train()` does not reach."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.models = [model]

    def forward(self, images):
        return self.models[0](images)


def train_listed(switch) -> None:
    model = classifier()
    wrapper = Listed(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    evaluate(model)
    for _ in range(3):
        switch(wrapper, model)
        for images, labels in batches(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapper(images), labels).backward()
            optimizer.step()
        evaluate(model)


def broken_in_a_model_that_is_not_registered() -> None:
    train_listed(lambda wrapper, model: wrapper.train())


def healthy_model_that_is_not_registered() -> None:
    train_listed(lambda wrapper, model: model.train())


def train_until(stop) -> None:
    """Return to training mode after an evaluation, unless `stop(epoch)`."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for epoch in range(5):
        for images, labels in batches(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        evaluate(model)
        if not stop(epoch):
            model.train()


def broken_where_an_evaluation_returns_early() -> None:
    train_until(lambda epoch: epoch >= 2)


def broken_after_some_of_the_evaluations() -> None:
    train_until(lambda epoch: epoch in (1, 3))


class Encoded(nn.Module):
    """An encoder and a head, both with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, images):
        return self.head(self.encoder(images))


def broken_part_that_is_loaded_in_evaluation_mode() -> None:
    model = Encoded()
    model.encoder.eval()
    train_plainly(model)


def broken_block_in_evaluation_mode() -> None:
    model = nn.Sequential(Encoded(), nn.Dropout(0.1), nn.Linear(3, 3))
    model[0].encoder[1].eval()
    model[0].head.eval()
    train_plainly(model)


def healthy_frozen_part_in_evaluation_mode() -> None:
    model = Encoded()
    model.encoder.eval().requires_grad_(requires_grad=False)
    train_plainly(model)


def healthy_features_that_another_optimizer_has_trained() -> None:
    """The features were trained before, and the head is trained on them without gradients."""
    model = Encoded()
    train_plainly(model)
    model.eval()
    model.head.train()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
    for images, labels in batches(6):
        with torch.no_grad():
            features = model.encoder(images)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model.head(features), labels).backward()
        optimizer.step()


class KeepsStatistics(nn.Sequential):
    """Its norms stay in evaluation mode from some time on."""

    keeps = False

    def train(self, mode: bool = True):
        super().train(mode)
        if self.keeps:
            for each in self:
                if isinstance(each, nn.BatchNorm1d):
                    each.eval()
        return self


def healthy_model_that_keeps_its_statistics() -> None:
    model = KeepsStatistics(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        model.train()
        for images, labels in batches(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        evaluate(model)
        model.keeps = epoch > 0


def dropping() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def broken_by_a_look_at_shapes_before_the_training() -> None:
    """A function that prints the outputs of a model sets evaluation mode, and leaves it."""
    model = dropping()
    model.eval()
    with torch.no_grad():
        model(torch.zeros(1, 6))
    train_plainly(model)


def healthy_look_at_shapes_that_restores_the_mode() -> None:
    model = dropping()
    model.eval()
    with torch.no_grad():
        model(torch.zeros(1, 6))
    model.train()
    train_plainly(model)


def healthy_dropout_that_is_off_in_all_epochs() -> None:
    """Evaluation mode is set once, for the training, and evaluations come after it."""
    model = dropping().eval()
    for _ in range(2):
        train_plainly(model)
        with torch.no_grad():
            model(torch.zeros(4, 6))


def train_with_copies(prepare, *, is_teacher: bool = False) -> None:
    """Train a model, and evaluate a copy of it; `prepare(model, epoch)` runs before."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    copied = copy.deepcopy(model).eval()
    for epoch in range(4):
        for images, labels in batches(4):
            if is_teacher:
                prepare(model, epoch)
                evaluate(copied)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if not is_teacher:
            prepare(model, epoch)
            evaluate(copy.deepcopy(model))


def broken_by_an_evaluation_of_a_copy() -> None:
    train_with_copies(lambda model, epoch: model.eval())


def healthy_evaluation_of_a_copy() -> None:
    train_with_copies(lambda model, epoch: None)


def healthy_norms_that_freeze_beside_a_teacher() -> None:
    train_with_copies(lambda model, epoch: model.train(epoch < 2), is_teacher=True)
