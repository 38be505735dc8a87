# Dropout masks are drawn outside of the recomputed segments and handed in.
import functools
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)
remat = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


class Layer(nn.Module):
    def __init__(self, dim, keep=0.9):
        super().__init__()
        self.keep = keep
        self.a = nn.Linear(dim, 2 * dim)
        self.b = nn.Linear(2 * dim, dim)

    def inner(self, x, mask):
        return x + self.b(torch.nn.functional.gelu(self.a(x)) * mask / self.keep)

    def forward(self, x):
        if not self.training:
            return self.inner(x, torch.full((1, 1), self.keep))
        mask = torch.bernoulli(torch.full((x.shape[0], self.a.out_features), self.keep))
        return remat(self.inner, x, mask)


net = nn.Sequential(nn.Linear(10, 32), Layer(32), Layer(32), nn.Linear(32, 1))
opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
x = torch.randn(1200, 10)
y = (x[:, :1] * x[:, 1:2]).tanh() + x[:, 2:3].sin()
for step in range(150):
    idx = torch.randint(0, 900, (64,))
    loss = nn.functional.mse_loss(net(x[idx]), y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
net.eval()
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x[900:]), y[900:]).item())
