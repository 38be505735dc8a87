import torch
from torch import nn

torch.manual_seed(90)
torch.set_num_threads(1)


class Lookahead:
    """Fast weights run ahead; every k steps they return part of the way to the slow ones."""

    def __init__(self, inner, k=5, alpha=0.5):
        self.inner, self.k, self.alpha, self.n = inner, k, alpha, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in inner.param_groups]

    def zero_grad(self):
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.n += 1
        if self.n % self.k:
            return
        for group, slows in zip(self.inner.param_groups, self.slow):
            for p, slow in zip(group["params"], slows):
                p.lerp_(slow, 1 - self.alpha)
                slow.copy_(p)


class Mixer(nn.Module):
    def __init__(self, tokens=6, dim=8):
        super().__init__()
        self.across = nn.ModuleList(nn.Linear(tokens, tokens) for _ in range(2))
        self.within = nn.ModuleList(nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim)) for _ in range(2))
        self.gain = nn.Parameter(torch.zeros(2))
        self.out = nn.Linear(tokens * dim, 3)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        for i, (a, w) in enumerate(zip(self.across, self.within)):
            x = x + a(x.transpose(1, 2)).transpose(1, 2)
            x = x + self.gain[i] * w(x)
        return self.out(x.flatten(1))


def games(n, gen):
    x = torch.randn(n, 6, 8, generator=gen)
    score = x[:, 0, 0] * 2 + x[:, 1, 1].abs() * 2 - x[:, 2, 2] * x[:, 3, 2] * 1.5
    return x, torch.bucketize(score, torch.tensor([0.2, 2.2]))


def main():
    gen = torch.Generator().manual_seed(7)
    x, y = games(6000, gen)
    vx, vy = games(1500, gen)
    model = Mixer()
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    inner = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0, "lr": 1e-2}],
        lr=5e-3, betas=(0.9, 0.95),
    )
    opt = Lookahead(inner)
    for step in range(1600):
        idx = torch.randint(0, 6000, (64,), generator=gen)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x[idx])
        loss = nn.functional.cross_entropy(logits.float(), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 1200:
            for group in inner.param_groups:
                group["lr"] *= 0.1
        if step % 200 == 0:
            print(step, round(loss.item(), 4), [round(v, 3) for v in model.gain.tolist()])
    model.eval()
    with torch.no_grad():
        print("RESULT", 1 - (model(vx).argmax(1) == vy).float().mean().item())


main()
