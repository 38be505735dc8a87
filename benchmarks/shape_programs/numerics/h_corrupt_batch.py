"""House values from a table in which unknown entries are stored as NaN."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
torch.set_num_threads(1)


def survey(n):
    full = torch.randn(n, 9)
    value = full[:, 0] * 1.5 - full[:, 1] + torch.sin(2 * full[:, 2]) + 0.1 * torch.randn(n)
    table = full.clone()
    table[torch.rand(n, 9) < 0.12] = float("nan")
    return table, value


class Imputer(nn.Module):
    """A learned stand-in for every unknown entry, plus a flag."""

    def __init__(self, columns):
        super().__init__()
        self.stand_in = nn.Parameter(torch.zeros(columns))

    def forward(self, table):
        unknown = torch.isnan(table)
        filled = torch.where(unknown, self.stand_in.expand_as(table), table)
        return torch.cat([filled, unknown.float()], 1)


net = nn.Sequential(Imputer(9), nn.Linear(18, 64), nn.SiLU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
train = DataLoader(TensorDataset(*survey(2400)), batch_size=64, shuffle=True)
for epoch in range(3):
    for table, value in train:
        loss = F.mse_loss(net(table).squeeze(1), value)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
table, value = survey(800)
with torch.no_grad():
    print("RESULT", F.mse_loss(net(table).squeeze(1), value).item())
