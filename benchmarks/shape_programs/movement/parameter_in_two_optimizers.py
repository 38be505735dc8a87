"""Next-token model over a noisy cyclic language; table and output layer are tied and trained at separate rates."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(34)
V, CTX = 24, 4
jump = torch.randint(1, V, (V,))
text = [0, 1, 2, 3]
for _ in range(3000):
    noise = torch.rand(()).item() < 0.1
    text.append(int(torch.randint(0, V, ())) if noise else (text[-1] + int(jump[text[-3]])) % V)
text = torch.tensor(text)
windows = text.unfold(0, CTX + 1, 1)


class TiedModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.table = nn.Embedding(V, dim)
        self.mix = nn.Sequential(nn.Linear(CTX * dim, 96), nn.ReLU(), nn.Linear(96, dim))
        self.out = nn.Linear(dim, V)
        nn.init.normal_(self.table.weight, std=0.3)
        self.out.weight = self.table.weight

    def forward(self, context):
        return self.out(self.mix(self.table(context).flatten(1)))


net = TiedModel()
optimizers = [
    torch.optim.Adam([*net.table.parameters(), *net.mix.parameters()], lr=8e-3),
    torch.optim.SGD(net.out.parameters(), lr=2.0, momentum=0.9),
]
for step in range(150):
    rows = torch.randint(0, 2500, (96,))
    loss = nn.functional.cross_entropy(net(windows[rows, :CTX]), windows[rows, CTX])
    for opt in optimizers:
        opt.zero_grad()
    loss.backward()
    for opt in optimizers:
        opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(windows[2500:, :CTX]), windows[2500:, CTX]).item())
