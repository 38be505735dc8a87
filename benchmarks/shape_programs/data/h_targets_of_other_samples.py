import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(101)


def grains(n):
    kind = torch.randint(3, (n,))
    centre = torch.tensor([[1.2, 0, 0, 0.8], [-1.0, 1.0, 0, 0], [0, -1.0, 1.2, 0]])
    return centre[kind] + 0.7 * torch.randn(n, 4), kind


def mixed(x, y):
    """Mixup: each sample blended with another, and the loss with both labels."""
    share = torch.distributions.Beta(0.4, 0.4).sample()
    partner = torch.randperm(len(x))
    return share * x + (1 - share) * x[partner], y, y[partner], share


x, y = grains(640)
test_x, test_y = grains(600)
net = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(6):
    net.train()
    for index in torch.randperm(len(x)).split(32):
        inputs, own, other, share = mixed(x[index], y[index])
        logits = net(inputs)
        loss = share * nn.functional.cross_entropy(logits, own)
        loss = loss + (1 - share) * nn.functional.cross_entropy(logits, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        error = (net(test_x).argmax(1) != test_y).float().mean().item()
    print(f"epoch {epoch} error {error:.3f}")
print("RESULT", error)
