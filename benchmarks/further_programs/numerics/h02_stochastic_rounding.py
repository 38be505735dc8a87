"""bfloat16 weights on purpose: the hand-written optimizer keeps an fp32 master and rounds it stochastically."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(6)


def stochastic_bf16(x, gen):
    bits = x.view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, generator=gen)
    return ((bits + noise) & -65536).view(torch.float32).to(torch.bfloat16)


class MasterAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.gen = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"] = 0
                    s["master"] = p.detach().float().clone()
                    s["m"] = torch.zeros_like(s["master"])
                    s["v"] = torch.zeros_like(s["master"])
                g = p.grad.float()
                s["t"] += 1
                s["m"].lerp_(g, 1 - b1)
                s["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                m = s["m"] / (1 - b1 ** s["t"])
                v = s["v"] / (1 - b2 ** s["t"])
                s["master"].sub_(group["lr"] * m / (v.sqrt() + group["eps"]))
                p.copy_(stochastic_bf16(s["master"], self.gen))


x = torch.randn(1600, 10)
y = ((x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] + x[:, 3] > 0).long())
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).bfloat16()
opt = MasterAdam(model.parameters(), lr=1e-3)
for epoch in range(15):
    for idx in torch.randperm(1200).split(40):
        loss = F.cross_entropy(model(x[idx].bfloat16()).float(), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 0:
        print(epoch, loss.item())

model.eval()
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(x[1200:].bfloat16()).float(), y[1200:]).item())
