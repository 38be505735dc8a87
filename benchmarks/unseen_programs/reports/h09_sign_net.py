"""Network with two-valued hidden weights, trained with a sign-based optimizer."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class TwoValued(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return torch.where(w >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, grad):
        w, = ctx.saved_tensors
        return grad * (w.abs() <= 1)


class SignLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.latent = nn.Parameter(torch.empty(n_out, n_in).uniform_(-0.3, 0.3))
        self.scale = nn.Parameter(torch.full((n_out, 1), n_in ** -0.5))

    def forward(self, x):
        return F.linear(x, TwoValued.apply(self.latent) * self.scale)


class SignMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                p.add_(m.sign(), alpha=-group["lr"])
                if group.get("bounded"):
                    p.clamp_(-1, 1)


def shapes(n, seed):
    gen = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=gen)
    centres = torch.randn(5, 2, 20, generator=torch.Generator().manual_seed(4))
    side = torch.randint(0, 2, (n,), generator=gen)
    return centres[y, side] + 1.1 * torch.randn(n, 20, generator=gen), y


def main(steps=600):
    torch.manual_seed(80)
    x, y = shapes(4000, 1)
    xv, yv = shapes(1000, 2)
    net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Hardtanh(), SignLinear(64, 64), nn.BatchNorm1d(64),
                        nn.Hardtanh(), nn.Linear(64, 5))
    latent = [p for n, p in net.named_parameters() if n.endswith("latent")]
    rest = [p for n, p in net.named_parameters() if not n.endswith("latent")]
    optimizer = SignMomentum([{"params": latent, "lr": 0.01, "bounded": True}, {"params": rest}], lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(net(x[idx]), y[idx])
        net.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 120 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    net.eval()
    with torch.no_grad():
        print("RESULT", (net(xv).argmax(1) != yv).float().mean().item())


if __name__ == "__main__":
    main()
