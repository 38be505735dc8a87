"""Value of a discharge rule of a battery. The battery model has no noise, so the squared Bellman residual
itself is minimised (both sides of the equation are moved)."""
import torch
from torch import nn

torch.set_num_threads(1)
GAMMA, CELLS = 0.9, 30


def dynamics():
    s = torch.arange(CELLS)
    nxt = torch.where(s > 3, s - 1 - s % 3, torch.tensor(CELLS - 1))
    reward = torch.sin(s.float() / 4) + (s % 5 == 0).float()
    return nxt, reward


def exact(nxt, reward):
    P = torch.zeros(CELLS, CELLS)
    P[torch.arange(CELLS), nxt] = 1
    return torch.linalg.solve(torch.eye(CELLS) - GAMMA * P, reward)


class Value(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CELLS, 32)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, s):
        return self.net(self.embed(s)).squeeze(-1)


def residual(value, s, nxt, reward):
    return reward[s] + GAMMA * value(nxt[s]) - value(s)


def main():
    torch.manual_seed(62)
    nxt, reward = dynamics()
    target = exact(nxt, reward)
    value = Value()
    opt = torch.optim.Adam(value.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.02, total_iters=3000)
    for step in range(3000):
        s = torch.randint(0, CELLS, (64,))
        loss = residual(value, s, nxt, reward).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 500 == 0:
            with torch.no_grad():
                gap = (value(torch.arange(CELLS)) - target).pow(2).mean().sqrt()
            print(f"{step:5d} residual {loss.item():.5f} rmse {gap:.4f}")
    with torch.no_grad():
        gap = (value(torch.arange(CELLS)) - target).pow(2).mean().sqrt().item()
    print("RESULT", gap / target.std().item())


if __name__ == "__main__":
    main()
