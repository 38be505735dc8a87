import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(10)
torch.set_num_threads(1)


class Autoencoder(nn.Module):
    def __init__(self, n=24, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n, 48), nn.Tanh(), nn.Linear(48, code))
        self.decoder = nn.Sequential(nn.Linear(code, 48), nn.Tanh(), nn.Linear(48, n))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def make_dataset(n, basis):
    z = torch.rand(n, 5) * 2 - 1
    return torch.sin(z @ basis * 1.5) + 0.02 * torch.randn(n, basis.shape[1])


def fit_epoch(model, loader, lr, momentum):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, nesterov=True)
    model.train()
    seen, total = 0, 0.0
    for (x,) in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        seen += len(x)
        total += loss.item() * len(x)
    return total / seen


def test_epoch(model, x):
    model.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), x).item()


if __name__ == "__main__":
    basis = torch.randn(5, 24)
    loader = DataLoader(TensorDataset(make_dataset(512, basis)), batch_size=128, shuffle=True)
    held_out = make_dataset(512, basis)
    model = Autoencoder()
    for epoch in range(150):
        train_loss = fit_epoch(model, loader, lr=0.05, momentum=0.97)
        if epoch % 30 == 0:
            print(f"{epoch:3d} train {train_loss:.4f} test {test_epoch(model, held_out):.4f}")
    print("RESULT", test_epoch(model, held_out))
