"""Sepsis risk: train on the large hospital, then adapt to a small clinic with other lab equipment."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(101)

weights = torch.randn(14)


def patients(n, offset, gain):
    x = torch.randn(n, 14)
    p = torch.sigmoid(2 * (x @ weights))
    y = (p > torch.rand(n)).float()
    return TensorDataset(x * gain + offset, y)


def make_loader(dataset, batch_size=64):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)


def mean_loss(model, dataset):
    x, y = dataset.tensors
    model.eval()
    with torch.no_grad():
        return nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).item()


def train(model, loader, epochs, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
    return model


torch.manual_seed(103)
hospital = patients(2560, offset=0.0, gain=1.0)
shift = torch.randn(14) * 1.2
stretch = 1 + torch.rand(14)
clinic = patients(56, shift, stretch)
clinic_test = patients(1000, shift, stretch)

model = nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 1))
train(model, make_loader(hospital), epochs=5, lr=5e-3)
print("hospital", mean_loss(model, hospital))
print("clinic before", mean_loss(model, clinic_test))

train(model, make_loader(clinic), epochs=60, lr=2e-3)
after = mean_loss(model, clinic_test)
print("clinic after", after)
print("RESULT", after)
