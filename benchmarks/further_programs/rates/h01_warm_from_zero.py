"""Transformer-style schedule: the rate starts at exactly 0, rises linearly and decays with 1/sqrt(step)."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
V, T, D = 12, 10, 32


class Reverser(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Parameter(0.1 * torch.randn(T, D))
        layer = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(D, V)

    def forward(self, x):
        return self.out(self.enc(self.tok(x) + self.pos))


def noam(step, warm=60):
    return min(step / warm, (warm / max(step, 1)) ** 0.5)


model = Reverser()
opt = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98), eps=1e-9)
sched = torch.optim.lr_scheduler.LambdaLR(opt, noam)
for step in range(260):
    x = torch.randint(V, (32, T))
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0:
        print(step, f"lr {sched.get_last_lr()[0]:.5f} loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    x = torch.randint(V, (256, T))
    print("RESULT", F.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten()).item())
