import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
torch.set_num_threads(1)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.reg = nn.Linear(48, 1)
        self.cls = nn.Linear(48, 4)

    def forward(self, x):
        h = self.trunk(x)
        return self.reg(h), self.cls(h)


def sample(n):
    x = torch.randn(n, 10)
    r = (x[:, :1] * x[:, 1:2]).tanh() + x[:, 2:3]
    c = (x[:, 3] > 0).long() * 2 + (x[:, 4] + x[:, 5] > 0).long()
    return x, r, c


class PCGrad:
    """Projects conflicting task gradients onto each other's normal plane."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.params = [p for g in optimizer.param_groups for p in g["params"]]

    def collect(self, loss):
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward(retain_graph=True)
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.params]

    def step(self, losses):
        grads = [self.collect(l) for l in losses]
        projected = []
        for i, gi in enumerate(grads):
            gi = [g.clone() for g in gi]
            for j, gj in enumerate(grads):
                if i == j:
                    continue
                dot = sum((a * b).sum() for a, b in zip(gi, gj))
                if dot < 0:
                    sq = sum((b * b).sum() for b in gj) + 1e-12
                    gi = [a - dot / sq * b for a, b in zip(gi, gj)]
            projected.append(gi)
        for k, p in enumerate(self.params):
            p.grad = sum(gi[k] for gi in projected)
        self.optimizer.step()


model = Shared()
opt = PCGrad(torch.optim.Adam(model.parameters(), lr=3e-3))
for step in range(300):
    x, r, c = sample(64)
    pr, pc = model(x)
    l_reg, l_cls = F.mse_loss(pr, r), F.cross_entropy(pc, c)
    opt.step([l_reg, l_cls])
    if step % 100 == 0:
        print(f"{step}: reg {l_reg.item():.3f} cls {l_cls.item():.3f}")

model.eval()
x, r, c = sample(1000)
with torch.no_grad():
    pr, pc = model(x)
    print(f"result: {(F.mse_loss(pr, r) + F.cross_entropy(pc, c)).item():.4f}")
