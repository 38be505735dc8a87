"""Match captions and pictures: softmax along rows and along columns."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(6)
A = torch.randn(8, 20, generator=gen)
B = torch.randn(8, 16, generator=gen)


def pairs(n):
    z = torch.randn(n, 8, generator=gen)
    img = torch.tanh(z @ A) + 0.05 * torch.randn(n, 20, generator=gen)
    txt = torch.tanh(z @ B) + 0.05 * torch.randn(n, 16, generator=gen)
    return img, txt


class Towers(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.img = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, d))
        self.txt = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, d))
        self.log_t = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        a, b = F.normalize(self.img(a), dim=-1), F.normalize(self.txt(b), dim=-1)
        return a @ b.T * self.log_t.exp()


def both_ways(sim):
    rows = -F.log_softmax(sim, dim=1).diagonal()
    cols = -F.log_softmax(sim, dim=0).diagonal()
    return (rows + cols).mean() / 2


model = Towers()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(120):
    loss = both_ways(model(*pairs(48)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())
model.eval()
with torch.no_grad():
    print("RESULT", float(both_ways(model(*pairs(48)))))
