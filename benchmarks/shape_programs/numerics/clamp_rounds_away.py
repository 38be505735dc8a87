"""Predict the correlation between two sensors; the error is measured in Fisher z space."""
import torch
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)


class FisherLoss(nn.Module):
    def __init__(self, margin=1e-3):
        super().__init__()
        self.register_buffer("low", torch.tensor(-1.0 + margin))
        self.register_buffer("high", torch.tensor(1.0 - margin))

    def forward(self, r, z_true):
        r = torch.fmin(torch.fmax(r, self.low), self.high)
        return (torch.atanh(r).float() - z_true).abs().mean()


def make_pairs(n):
    x = torch.randn(n, 12)
    z = 2.4 * torch.sin(x[:, 0]) + 1.2 * x[:, 1] * (x[:, 2] > 0)
    return x, z


def main():
    net = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1), nn.Tanh())
    criterion = FisherLoss()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    x, z = make_pairs(2048)
    xv, zv = make_pairs(512)
    for step in range(120):
        pick = torch.randint(0, len(x), (128,))
        with torch.autocast("cpu", torch.bfloat16):
            r = net(x[pick]).squeeze(1)
            loss = criterion(r, z[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(step, loss.item())
    with torch.no_grad():
        r = net(xv).squeeze(1)
        print("RESULT", criterion(r, zv).item())


if __name__ == "__main__":
    main()
