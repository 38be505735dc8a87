import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)


def letters(n):
    centre = torch.tensor([[1.5, 0, 0.5], [-1.0, 1.5, 0], [0, -1.5, -1.0], [1.0, 1.0, -1.5]])
    kind = torch.randint(4, (n,))
    return centre[kind] + torch.randn(n, 3), kind


def loader_of(n):
    return DataLoader(TensorDataset(*letters(n)), batch_size=32, shuffle=True)


train, calibration = loader_of(480), loader_of(256)
test_x, test_y = letters(1000)

net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(6):
    for x, y in train:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def column(loader, function):
    return torch.cat([function(x, y) for x, y in loader])


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_t = nn.Parameter(torch.zeros(()))

    def forward(self, logits):
        return logits / self.log_t.exp()

    def fit(self, logits, labels):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        for step in range(50):
            optimizer.zero_grad()
            loss = F.cross_entropy(self(logits), labels)
            loss.backward()
            optimizer.step()
        return loss.item()


net.eval()
with torch.no_grad():
    logits = column(calibration, lambda x, y: net(x))
    labels = column(calibration, lambda x, y: y)
scale = Temperature()
print(f"calibrated to {scale.fit(logits, labels):.3f} at temperature {scale.log_t.exp().item():.2f}")
with torch.no_grad():
    print("RESULT", F.cross_entropy(scale(net(test_x)), test_y).item())
