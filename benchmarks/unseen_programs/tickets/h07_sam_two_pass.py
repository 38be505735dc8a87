"""Train with sharpness-aware minimisation (two passes per batch); report validation loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(48)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([g.norm() for g in grads]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad, alpha=group["rho"] / (norm.item() + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()


def set_running_stats(model, enabled):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d):
            if enabled:
                m.momentum = getattr(m, "backup_momentum", m.momentum)
            else:
                m.backup_momentum, m.momentum = m.momentum, 0


def two_moons(n, seed, noise):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    t = 3.14 * torch.rand(n, generator=g) + 2.1 * y
    r = 1 + 0.6 * t / 6.28
    x = torch.stack([r * t.cos(), r * t.sin(), torch.randn(n, generator=g)], 1)
    x = x + 0.12 * torch.randn(x.shape, generator=g)
    flip = torch.rand(n, generator=g) < noise
    return x, torch.where(flip, torch.randint(0, 3, (n,), generator=g), y)


def smooth_crossentropy(pred, gold, smoothing=0.1):
    one_hot = torch.full_like(pred, smoothing / (pred.size(1) - 1))
    one_hot.scatter_(1, gold[:, None], 1.0 - smoothing)
    return F.kl_div(F.log_softmax(pred, 1), one_hot, reduction="none").sum(-1)


def main():
    x, y = two_moons(600, 0, 0.05)
    vx, vy = two_moons(500, 1, 0.0)
    model = nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64),
                          nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9,
                    weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, 200)
    for step in range(1, 201):
        idx = torch.randint(0, 600, (64,))
        set_running_stats(model, True)
        smooth_crossentropy(model(x[idx]), y[idx]).mean().backward()
        optimizer.first_step()
        set_running_stats(model, False)
        second = smooth_crossentropy(model(x[idx]), y[idx]).mean()
        second.backward()
        optimizer.second_step()
        schedule.step()
        if step % 40 == 0:
            model.eval()
            with torch.no_grad():
                val = F.cross_entropy(model(vx), vy).item()
            model.train()
            print(f"step {step} perturbed_loss {second.item():.4f} val_loss {val:.4f}")
    model.eval()
    with torch.no_grad():
        print("RESULT", F.cross_entropy(model(vx), vy).item())


if __name__ == "__main__":
    main()
