"""Distill a CNN teacher into a small student on noisy glyph images; report validation error."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(77)


class Params:
    teacher_epochs, student_epochs = 6, 8
    batch_size, learning_rate = 32, 3e-3
    alpha, temperature, num_classes = 0.9, 4.0, 8


GLYPHS = np.random.default_rng(0).random((Params.num_classes, 6, 6)) < 0.45


def glyph_images(n, seed, label_noise=0.0):
    r = np.random.default_rng(seed)
    y = r.integers(0, Params.num_classes, n)
    x = r.normal(0, 0.25, (n, 1, 12, 12)).astype(np.float32)
    for k in range(n):
        i, j = r.integers(0, 7, 2)
        x[k, 0, i:i + 6, j:j + 6] += r.uniform(0.9, 1.5) * GLYPHS[y[k]]
    flip = r.random(n) < label_noise
    y = np.where(flip, r.integers(0, Params.num_classes, n), y)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


class Net(nn.Module):
    def __init__(self, channels, params):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 5, padding=2), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 5, padding=2), nn.BatchNorm2d(2 * channels),
            nn.ReLU(), nn.AdaptiveMaxPool2d(2))
        self.fc = nn.Linear(8 * channels, params.num_classes)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


def loss_fn_kd(outputs, labels, teacher_outputs, params):
    alpha, T = params.alpha, params.temperature
    soft = F.kl_div(F.log_softmax(outputs / T, dim=1), F.softmax(teacher_outputs / T, dim=1),
                    reduction="batchmean")
    return soft * (alpha * T * T) + F.cross_entropy(outputs, labels) * (1.0 - alpha)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    wrong = sum((model(x).argmax(1) != y).sum().item() for x, y in loader)
    return wrong / len(loader.dataset)


@torch.no_grad()
def fetch_teacher_outputs(teacher, dataloader):
    teacher.eval()
    return [teacher(x) for x, _ in dataloader]


def train_teacher(teacher, loader, params):
    optimizer = torch.optim.Adam(teacher.parameters(), lr=params.learning_rate)
    for _ in range(params.teacher_epochs):
        teacher.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(teacher(x), y).backward()
            optimizer.step()


def train_kd(model, teacher_outputs, optimizer, dataloader, params):
    model.train()
    total = 0.0
    for i, (train_batch, labels_batch) in enumerate(dataloader):
        output_batch = model(train_batch)
        output_teacher_batch = teacher_outputs[i]
        loss = loss_fn_kd(output_batch, labels_batch, output_teacher_batch, params)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(dataloader)


def train_and_evaluate_kd(student, teacher, train_dl, val_dl, params):
    optimizer = torch.optim.Adam(student.parameters(), lr=params.learning_rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.3)
    teacher_outputs = fetch_teacher_outputs(teacher, train_dl)
    for epoch in range(params.student_epochs):
        loss = train_kd(student, teacher_outputs, optimizer, train_dl, params)
        scheduler.step()
        print(f"Epoch {epoch + 1} kd_loss {loss:.4f} val_error {evaluate(student, val_dl):.4f}")
    return evaluate(student, val_dl)


if __name__ == "__main__":
    params = Params()
    train_dl = DataLoader(glyph_images(960, 1, 0.15), params.batch_size, shuffle=True)
    val_dl = DataLoader(glyph_images(500, 2), 100)
    teacher, student = Net(12, params), Net(4, params)
    train_teacher(teacher, train_dl, params)
    print("teacher val_error", evaluate(teacher, val_dl))
    print("RESULT", train_and_evaluate_kd(student, teacher, train_dl, val_dl, params))
