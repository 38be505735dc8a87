import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(30)

NAMES = 64


class Pairs(Dataset):
    """The same people in two registers; each register has its own numbers for them."""

    def __init__(self):
        self.other = torch.randperm(NAMES)

    def __len__(self):
        return NAMES

    def __getitem__(self, i):
        return i, self.other[i]


class EpochSampler(torch.utils.data.Sampler):
    def __init__(self, data, seed):
        self.data, self.seed, self.epoch = data, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(len(self.data), generator=g).tolist())


class Registers(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.left = nn.Embedding(NAMES, width)
        self.right = nn.Embedding(NAMES, width)

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T / 0.1


def fit(net, loader, epochs):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for epoch in range(epochs):
        if hasattr(loader.batch_sampler, "set_epoch"):
            loader.batch_sampler.set_epoch(epoch)
        for a, b in loader:
            score = net(a, b)
            truth = torch.arange(len(a))
            loss = (F.cross_entropy(score, truth) + F.cross_entropy(score.T, truth)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 4 == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")


data = Pairs()
net = Registers()
fit(net, DataLoader(data, batch_size=8, sampler=EpochSampler(data, seed=7)), epochs=18)
with torch.no_grad():
    everyone = net(torch.arange(NAMES), data.other)
    print("RESULT", F.cross_entropy(everyone, torch.arange(NAMES)).item())
