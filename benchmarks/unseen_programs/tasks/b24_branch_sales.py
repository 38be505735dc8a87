"""Forecasts the growth of shop branches from yearly accounts, in fp16 mixed precision."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(131)

COLUMNS = ["revenue", "wages", "rent", "stock", "visitors", "area"]
TYPICAL = torch.tensor([400000.0, 90000.0, 40000.0, 70000.0, 120000.0, 600.0])


def accounts(n, gen):
    spread = 0.5 * torch.randn(n, len(COLUMNS), generator=gen)
    table = TYPICAL * spread.exp()
    margin = spread[:, 0] - 0.6 * spread[:, 1] - 0.3 * spread[:, 2]
    growth = 0.8 * torch.tanh(2 * margin) + 0.5 * spread[:, 4] * spread[:, 5]
    return table, (growth + 0.05 * torch.randn(n, generator=gen)).unsqueeze(-1)


class GrowthNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(len(COLUMNS), width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1))

    def forward(self, table):
        return self.layers(table)


class Runner:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.AdamW(net.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=100)
        self.loss = nn.HuberLoss()

    def step(self, table, growth):
        self.opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = self.loss(self.net(table), growth)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item(), norm.item()

    @torch.no_grad()
    def evaluate(self, loader):
        self.net.eval()
        total = sum(self.loss(self.net(t), g).item() * len(t) for t, g in loader)
        self.net.train()
        return total / len(loader.dataset)


def main():
    gen = torch.Generator().manual_seed(30)
    table, growth = accounts(1600, gen)
    val_table, val_growth = accounts(400, gen)
    train = DataLoader(TensorDataset(table, growth), batch_size=64, shuffle=True)
    val = DataLoader(TensorDataset(val_table, val_growth), batch_size=200)
    runner = Runner(GrowthNet(), lr=3e-3)
    for epoch in range(8):
        for batch in train:
            loss, norm = runner.step(*batch)
        print(f"epoch {epoch} loss {loss:.4f} norm {norm:.4f} "
              f"scale {runner.scaler.get_scale():g} val {runner.evaluate(val):.4f}")
    return runner.evaluate(val)


print("RESULT", main())
