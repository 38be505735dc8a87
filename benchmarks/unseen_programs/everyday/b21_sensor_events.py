"""Classify machine events from vibration windows with a convolutional network."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(2121)

LENGTH, EVENTS = 64, 5


def windows(n):
    event = torch.randint(0, EVENTS, (n,))
    t = torch.arange(LENGTH).float()
    freq = 0.25 + 0.12 * event.float() + 0.02 * torch.randn(n)
    phase = 6.3 * torch.rand(n)
    wave = torch.sin(freq[:, None] * t + phase[:, None])
    centre = LENGTH * (0.3 + 0.4 * torch.rand(n))
    envelope = torch.exp(-((t - centre[:, None]) / 18) ** 2)
    second = 0.5 * torch.sin(2.5 * freq[:, None] * t) * (event % 2)[:, None]
    signal = envelope * (wave + second) + 0.35 * torch.randn(n, LENGTH)
    return signal.unsqueeze(1), event


class VibrationNet(nn.Module):
    def __init__(self, width=24, p=0.5):
        super().__init__()
        self.conv1 = nn.Conv1d(1, width, 9, padding=4)
        self.conv2 = nn.Conv1d(width, width, 7, padding=3)
        self.fc1 = nn.Linear(width * 4, 48)
        self.fc2 = nn.Linear(48, EVENTS)
        self.p = p

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.conv1(x)), 4)
        x = F.max_pool1d(F.relu(self.conv2(x)), 4)
        x = F.dropout(x.flatten(1), self.p)
        x = F.dropout(F.relu(self.fc1(x)), self.p)
        return self.fc2(x)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss = wrong = count = 0
    for signal, event in loader:
        logits = model(signal)
        loss += F.cross_entropy(logits, event, reduction="sum").item()
        wrong += (logits.argmax(1) != event).sum().item()
        count += len(event)
    return loss / count, wrong / count


def train_epoch(model, loader, optimizer, scheduler):
    model.train()
    total = 0.0
    for signal, event in loader:
        loss = F.cross_entropy(model(signal), event)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
    return total / len(loader)


def main():
    train = DataLoader(TensorDataset(*windows(2400)), batch_size=64, shuffle=True)
    val = DataLoader(TensorDataset(*windows(500)), batch_size=250)
    model = VibrationNet()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    epochs = 7
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1.0, end_factor=0.1, total_iters=epochs * len(train))
    for epoch in range(epochs):
        train_loss = train_epoch(model, train, optimizer, scheduler)
        val_loss, val_error = evaluate(model, val)
        print(f"epoch {epoch} train {train_loss:.4f} val {val_loss:.4f} error {val_error:.3f}")
    print(f"RESULT {val_loss:.5f}")


if __name__ == "__main__":
    main()
