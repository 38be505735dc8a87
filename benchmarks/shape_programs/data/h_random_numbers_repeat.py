import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(61)


def blobs(n):
    corner = torch.randint(4, (n,))
    return torch.stack([corner % 2, corner // 2], 1) * 4.0 - 2 + 0.15 * torch.randn(n, 2)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))

    def forward(self, x, t):
        return self.body(torch.cat([x, t], 1))


def matching_loss(net, data):
    t, noise = torch.rand(len(data), 1), torch.randn_like(data)
    return (net((1 - t) * noise + t * data, t) - (data - noise)).square().mean()


def score(net, data):
    """The same times and noise at every evaluation, so that scores can be compared."""
    net.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1234)
        value = matching_loss(net, data).item()
    net.train()
    return value


train, held_out = blobs(2048), blobs(512)
net = Flow()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 128)
for epoch in range(8):
    for index in torch.randperm(len(train)).split(128):
        loss = matching_loss(net, train[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"epoch {epoch} score {score(net, held_out):.3f}")
print("RESULT", score(net, held_out))
