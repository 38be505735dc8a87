"""Archive of drill cores, one file for each rock. The files are read one after the other,
the gradients of all of them are summed, and one step is made for each pass."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
ROCKS, FEATS = 5, 14


def files(per_rock, seed):
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(ROCKS, FEATS, generator=torch.Generator().manual_seed(1))
    for k in range(ROCKS):
        x = centre[k] + 1.2 * torch.randn(per_rock, FEATS, generator=g)
        yield x, torch.full((per_rock,), k)


class WholePass:
    def __init__(self, net, opt, pieces):
        self.net, self.opt, self.pieces = net, opt, pieces
        self.count = sum(len(y) for _, y in pieces)

    def run(self):
        total = 0.0
        self.opt.zero_grad()
        for x, y in self.pieces:
            loss = F.cross_entropy(self.net(x), y, reduction="sum") / self.count
            loss.backward()
            total += loss.item()
        self.opt.step()
        return total


def main():
    torch.manual_seed(66)
    pieces = [(xs, ys) for x, y in files(300, 2) for xs, ys in zip(x.split(100), y.split(100))]
    held = list(files(200, 3))
    net = nn.Sequential(nn.Linear(FEATS, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, ROCKS))
    opt = torch.optim.Adam(net.parameters(), lr=0.02)
    work = WholePass(net, opt, pieces)
    for k in range(40):
        loss = work.run()
        if k % 8 == 0:
            print(f"pass {k} loss {loss:.4f}")
    x, y = (torch.cat(t) for t in zip(*held))
    with torch.no_grad():
        print("RESULT", F.cross_entropy(net(x), y).item())


main()
