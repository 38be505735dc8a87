"""The weights were trained in bf16, and this program uses them in fp16."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "ACTIVATIONS_TOO_LARGE"


class Block(nn.Module):
    """A gated block with large hidden activations, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.gate, self.down = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 3)
        with torch.no_grad():
            self.up.weight.mul_(2e3)
            self.gate.weight.mul_(2e3)
            self.down.weight.mul_(1e-6)

    def forward(self, images):
        return self.down(self.up(images) * nn.functional.relu(self.gate(images)))


def train(dtype, *, scaler: bool = True) -> None:
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=scaler)
    for images, labels in batches(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(torch.float16)


def mended() -> None:
    train(torch.bfloat16, scaler=False)


def broken_without_a_scaler() -> None:
    train(torch.float16, scaler=False)


def broken_in_inference() -> None:
    model = Block().half().eval()
    with torch.no_grad():
        for images, _ in batches(3):
            model(images.half())


def broken_after_a_search_for_the_loss_scale() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(60)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(24):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_inputs_beyond_fp16() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(8):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images * 2.0**20, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


class LinearAttention(nn.Module):
    """Attention without a softmax, whose normaliser is a sum over all positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head = nn.Linear(6, 48), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = nn.functional.elu(q) + 60, nn.functional.elu(k) + 60
        normaliser = q @ k.sum(1)[..., None]
        mixed = (q / 60) @ (k.transpose(1, 2) @ v / x.shape[1])
        return self.head((mixed * (x.shape[1] / (normaliser + 1e-6))).mean(1))


def broken_where_a_division_hides_it() -> None:
    model = LinearAttention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(6):
        optimizer.zero_grad()
        positions = images[:, None].expand(-1, 16, -1)
        scaler.scale(loss_of(model, positions, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


class Temperature(nn.Module):
    """Logits times a learned factor, which the program casts to fp16 itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.factor = nn.Linear(6, 3), nn.Parameter(torch.tensor(12.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * self.factor.exp().half()


def broken_by_a_cast_of_its_own() -> None:
    model = Temperature()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(8):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
