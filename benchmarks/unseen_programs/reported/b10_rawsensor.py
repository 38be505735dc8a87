"""Gesture classifier on raw sensor counts (no standardisation: the network normalises internally)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight.to(x.dtype)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.fc2(F.silu(self.fc1(self.norm(x))))


class GestureNet(nn.Module):
    def __init__(self, n_in=12, dim=32, classes=6):
        super().__init__()
        self.stem = nn.Linear(n_in, dim)
        self.norm_in = RMSNorm(dim)
        self.blocks = nn.Sequential(Block(dim), Block(dim))
        self.norm_out = RMSNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.norm_out(self.blocks(self.norm_in(self.stem(x)))))


def recordings(n, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(6, 12, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, 6, (n,), generator=g)
    gain = 10 ** (0.5 + 2.2 * torch.rand(n, 1, generator=g))
    return gain * (proto[y] + 0.6 * torch.randn(n, 12, generator=g)), y


def fit(model, x, y, epochs=5, batch=64):
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for epoch in range(epochs):
        order, losses = torch.randperm(len(x)), []
        for idx in order.split(batch):
            with torch.autocast("cpu", torch.float16):
                logits = model(x[idx])
            loss = F.cross_entropy(logits.float(), y[idx])
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")


@torch.no_grad()
def error(model, x, y):
    with torch.autocast("cpu", torch.float16):
        return (model(x).argmax(-1) != y).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    net = GestureNet()
    fit(net, *recordings(1800, 1))
    print("RESULT", error(net, *recordings(500, 2)))
