"""Residual tabular net whose branches and head start at zero."""
import torch
import torch.nn as nn

torch.manual_seed(1)
torch.set_num_threads(1)


class Branch(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a = nn.Linear(d, 2 * d)
        self.b = nn.Linear(2 * d, d)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


def zero_head(d):
    head = nn.Linear(d, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


gen = torch.Generator().manual_seed(4)
X = torch.randn(1024, 10, generator=gen)
Y = (X[:, 0] * X[:, 1] + torch.sin(2 * X[:, 2]) + 0.5 * X[:, 3])[:, None]
Y = Y + 0.05 * torch.randn(Y.shape, generator=gen)
train, test = slice(0, 768), slice(768, None)

model = nn.Sequential(nn.Linear(10, 48), Branch(48), Branch(48), zero_head(48))
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
for epoch in range(12):
    for idx in torch.randperm(768, generator=gen).split(64):
        loss = nn.functional.mse_loss(model(X[train][idx]), Y[train][idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())

model.eval()
with torch.no_grad():
    print("RESULT", float(nn.functional.mse_loss(model(X[test]), Y[test])))
