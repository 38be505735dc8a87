"""Mixture density network for a relation with several branches."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)


def branches(n, gen):
    x = torch.rand(n, 1, generator=gen) * 2 - 1
    which = torch.randint(0, 3, (n, 1), generator=gen)
    y = (which - 1) * (0.4 + 0.3 * x) + 0.1 * torch.sin(6 * x)
    return x, y + 0.01 * torch.randn(n, 1, generator=gen)


class MDN(nn.Module):
    def __init__(self, k=5, width=64):
        super().__init__()
        self.k = k
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3 * k))
        with torch.no_grad():
            self.net[-1].bias[k:2 * k] = torch.linspace(-0.8, 0.8, k)

    def forward(self, x):
        logit, mean, log_sigma = self.net(x).split(self.k, dim=1)
        return logit.log_softmax(1), mean, log_sigma.clamp(-6, 2)


def nll(model, x, y):
    log_weight, mean, log_sigma = model(x)
    z = (y - mean) / log_sigma.exp()
    log_prob = -0.5 * z ** 2 - log_sigma - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(log_weight + log_prob, dim=1).mean()


def main(steps=900):
    torch.manual_seed(50)
    gen = torch.Generator().manual_seed(51)
    val = branches(1500, torch.Generator().manual_seed(52))
    model = MDN()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    clipped = 0
    for step in range(1, steps + 1):
        loss = nll(model, *branches(128, gen))
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        clipped += int(norm > 1.0)
        optimizer.step()
        scheduler.step()
        if step % 150 == 0:
            with torch.no_grad():
                print(f"step {step} loss {loss.item():.4f} val {nll(model, *val).item():.4f} clipped {clipped}")
    with torch.no_grad():
        print("RESULT", nll(model, *val).item())


if __name__ == "__main__":
    main()
