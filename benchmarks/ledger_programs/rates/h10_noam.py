import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(101)
torch.set_num_threads(1)
V, D, L = 12, 48, 8


class Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(0.02 * torch.randn(L, D))
        self.layer = nn.TransformerEncoderLayer(D, 4, 96, dropout=0.0, batch_first=True)
        self.out = nn.Linear(D, V)

    def forward(self, x):
        return self.out(self.layer(self.emb(x) + self.pos))


def rate(step, model_size, factor, warmup):
    step = max(step, 1)
    return factor * model_size ** -0.5 * min(step ** -0.5, step * warmup ** -1.5)


def batch(n=32):
    x = torch.randint(0, V, (n, L))
    return x, x.flip(1)


model = Seq()
optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, D, 0.6, 160))
for step in range(400):
    x, y = batch()
    loss = F.cross_entropy(model(x).transpose(1, 2), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    lr_scheduler.step()
    if step % 80 == 0:
        print(f"step {step} loss {loss.item():.3f} lr {optimizer.param_groups[0]['lr']:.2e}")

model.eval()
with torch.no_grad():
    x, y = batch(300)
    print(f"result: {F.cross_entropy(model(x).transpose(1, 2), y).item():.4f}")
