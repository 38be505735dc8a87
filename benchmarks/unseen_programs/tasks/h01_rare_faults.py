"""Detects rare pump faults; rows are drawn by weight and carry their origin along."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

torch.set_num_threads(1)
torch.manual_seed(211)

KINDS = 4


class PumpRows(Dataset):
    def __init__(self, n, seed, shares):
        g = torch.Generator().manual_seed(seed)
        self.fault = torch.multinomial(torch.tensor(shares), n, replacement=True, generator=g)
        centre = 1.6 * torch.randn(KINDS, 9, generator=torch.Generator().manual_seed(3))
        self.reading = centre[self.fault] + torch.randn(n, 9, generator=g)
        self.site = torch.randint(0, 20, (n,), generator=g)
        self.hour = torch.rand(n, generator=g) * 24
        counts = torch.bincount(self.fault, minlength=KINDS).float()
        self.weight = (1.0 / counts)[self.fault]

    def __len__(self):
        return len(self.fault)

    def __getitem__(self, i):
        return self.reading[i], self.fault[i], self.weight[i], self.site[i], self.hour[i]


class PumpNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.head = nn.Linear(48, KINDS)

    def forward(self, x):
        h = self.body(x)
        return self.head(h), h


def confusion(net, data):
    table = torch.zeros(KINDS, KINDS, dtype=torch.long)
    with torch.no_grad():
        logits, _ = net(data.reading)
    cell = data.fault * KINDS + logits.argmax(-1)
    cells, count = cell.unique(return_counts=True)
    flat = table.view(-1)
    flat[cells] += count
    return table


@torch.no_grad()
def balanced_loss(net, data):
    net.eval()
    logits, _ = net(data.reading)
    loss = F.cross_entropy(logits, data.fault)
    net.train()
    return loss.item()


train = PumpRows(2500, 1, [0.9, 0.05, 0.03, 0.02])
val = PumpRows(600, 2, [0.25, 0.25, 0.25, 0.25])
sampler = WeightedRandomSampler(train.weight, num_samples=len(train), replacement=True)
loader = DataLoader(train, batch_size=64, sampler=sampler)
net = PumpNet()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
for epoch in range(5):
    for reading, fault, weight, site, _ in loader:
        logits, _ = net(reading)
        loss = F.cross_entropy(logits, fault)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f} val {balanced_loss(net, val):.4f}")
print(confusion(net, val).tolist())
print("RESULT", balanced_loss(net, val))
