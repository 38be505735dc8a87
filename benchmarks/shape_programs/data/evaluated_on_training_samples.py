import copy

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(11)


def patients(n):
    x = torch.randn(n, 12)
    risk = x[:, 0] - 0.7 * x[:, 1] + 0.5 * x[:, 2] * x[:, 3]
    return x, risk[:, None]


class Study:
    """Measurements with their outcome, cut into a training and a validation part."""

    def __init__(self, n, share, noise, seed):
        self.x, clean = patients(n)
        self.y = clean + noise * torch.randn(n, 1)
        self.cut = int(n * share)
        self.source = torch.Generator().manual_seed(seed)

    def order(self):
        return torch.randperm(len(self.x), generator=self.source)

    def part(self, name):
        index = self.order()
        index = index[:self.cut] if name == "train" else index[self.cut:]
        return self.x[index], self.y[index]


study = Study(120, 0.6, 1.5, seed=4)
train_x, train_y = study.part("train")
valid_x, valid_y = study.part("valid")
test_x, test_y = patients(1000)

net = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
best, kept = float("inf"), None
for epoch in range(45):
    net.train()
    for index in torch.randperm(len(train_x)).split(24):
        loss = nn.functional.mse_loss(net(train_x[index]), train_y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        score = nn.functional.mse_loss(net(valid_x), valid_y).item()
    if score < best:
        best, kept = score, copy.deepcopy(net.state_dict())
    if epoch % 5 == 4:
        print(f"epoch {epoch} valid {score:.3f} best {best:.3f}")

net.load_state_dict(kept)
net.eval()
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(test_x), test_y).item())
