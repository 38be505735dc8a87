"""Trains a 1-D convolutional network to recognise activities from accelerometer windows."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(8)

ACTIVITIES = ["walk", "upstairs", "downstairs", "sit", "stand", "lie"]
WINDOW, CHANNELS, EPOCHS, BATCH = 64, 9, 8, 64


def windows(n):
    label = torch.randint(0, len(ACTIVITIES), (n,))
    t = torch.arange(WINDOW).float() / 20
    basis = torch.randn(len(ACTIVITIES), CHANNELS, generator=torch.Generator().manual_seed(1))
    freq = torch.tensor([1.9, 1.6, 2.2, 0.2, 0.3, 0.1])[label] + 0.15 * torch.randn(n)
    power = torch.tensor([1.0, 0.9, 1.2, 0.1, 0.1, 0.05])[label]
    phase = 6.28 * torch.rand(n, CHANNELS)
    wave = torch.sin(6.28 * freq[:, None, None] * t + phase[..., None])
    gravity = 0.8 * basis[label] + 0.5 * torch.randn(n, CHANNELS)
    x = gravity[..., None] + power[:, None, None] * wave + 0.5 * torch.randn(n, CHANNELS, WINDOW)
    return x.unsqueeze(2), label


def standardise(train, *others):
    mean, std = train.mean((0, 3), keepdim=True), train.std((0, 3), keepdim=True)
    return [(x - mean) / std for x in (train, *others)]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(CHANNELS, 32, (1, 9)), nn.ReLU(), nn.MaxPool2d((1, 2)))
        self.conv2 = nn.Sequential(nn.Conv2d(32, 64, (1, 9)), nn.ReLU(), nn.MaxPool2d((1, 2)))
        self.fc1 = nn.Sequential(nn.Linear(64 * 10, 120), nn.ReLU())
        self.fc2 = nn.Sequential(nn.Linear(120, 84), nn.ReLU())
        self.fc3 = nn.Linear(84, len(ACTIVITIES))

    def forward(self, x):
        out = self.conv2(self.conv1(x))
        out = self.fc2(self.fc1(out.flatten(1)))
        out = F.softmax(self.fc3(out), dim=1)
        return out


def train_epoch(model, loader, criterion, optimizer):
    model.train()
    seen = correct = total_loss = 0.0
    for sample, target in loader:
        output = model(sample)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(target)
        total_loss += loss.item() * len(target)
        correct += (output.argmax(1) == target).sum().item()
    return total_loss / seen, correct / seen


@torch.no_grad()
def test(model, loader, criterion):
    model.eval()
    total_loss = correct = seen = 0.0
    for sample, target in loader:
        output = model(sample)
        total_loss += criterion(output, target).item() * len(target)
        correct += (output.argmax(1) == target).sum().item()
        seen += len(target)
    return total_loss / seen, correct / seen


x_train, y_train = windows(1600)
x_test, y_test = windows(500)
x_train, x_test = standardise(x_train, x_test)
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=BATCH, shuffle=True)
test_loader = DataLoader(TensorDataset(x_test, y_test), batch_size=250)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for epoch in range(EPOCHS):
    loss, acc = train_epoch(model, train_loader, criterion, optimizer)
    test_loss, test_acc = test(model, test_loader, criterion)
    print(f"Epoch: [{epoch + 1}/{EPOCHS}], loss: {loss:.4f}, train acc: {acc:.2%}, "
          f"test loss: {test_loss:.4f}, test acc: {test_acc:.2%}")
print("RESULT", round(test_loss, 5))
