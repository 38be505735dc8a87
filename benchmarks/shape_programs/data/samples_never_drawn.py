import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.set_num_threads(1)
torch.manual_seed(80)

NAMES = ["normal", "bearing", "belt", "motor"]
SHARE = torch.tensor([0.40, 0.28, 0.20, 0.12])


def machines(n, share):
    """Vibration in 10 bands; each fault moves some of them."""
    kind = torch.multinomial(share, n, replacement=True)
    profile = torch.zeros(4, 10)
    profile[1, :3], profile[2, 2:6], profile[3, 5:] = 1.1, -1.1, 0.9
    return profile[kind] + torch.randn(n, 10), kind


def balance(kind):
    """Weights with which rare states come as often as frequent ones."""
    count = torch.bincount(kind, minlength=len(NAMES))
    per_state = len(kind) // len(NAMES) // count
    return per_state[kind].double()


def report(net, x, y):
    with torch.no_grad():
        guess = net(x).argmax(1)
    return [(guess[y == k] != k).float().mean().item() for k in range(len(NAMES))]


x, kind = machines(800, SHARE)
sampler = WeightedRandomSampler(balance(kind), num_samples=len(kind), replacement=True)
loader = DataLoader(TensorDataset(x, kind), batch_size=40, sampler=sampler)
test_x, test_kind = machines(1000, torch.ones(4) / 4)

net = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(5):
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(batch), target)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")

errors = report(net, test_x, test_kind)
for name, error in zip(NAMES, errors):
    print(f"{name:8s} {error:.3f}")
print("RESULT", sum(errors) / len(errors))
