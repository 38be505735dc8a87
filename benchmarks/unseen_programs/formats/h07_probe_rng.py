import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

torch.set_num_threads(1)


class FixedOrder(Sampler):
    """The same shuffle for a given epoch number, whatever happened before."""

    def __init__(self, n, seed):
        self.n, self.seed, self.epoch = n, seed, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        self.epoch += 1
        return iter(torch.randperm(self.n, generator=gen).tolist())


class Shapes(Dataset):
    """Bumps at random places; the target is the place of the highest."""

    def __init__(self, n, seed, jitter):
        g = torch.Generator().manual_seed(seed)
        self.centre = torch.rand(n, 3, generator=g) * 0.8 + 0.1
        self.height = torch.rand(n, 3, generator=g) + torch.tensor([1.0, 0.0, 0.0])
        self.jitter = jitter
        self.axis = torch.linspace(0, 1, 24)

    def __len__(self):
        return len(self.centre)

    def __getitem__(self, i):
        bumps = self.height[i][:, None] * torch.exp(-((self.axis - self.centre[i][:, None]) ** 2) / 0.003)
        signal = bumps.sum(0)
        if self.jitter:
            signal = signal * (0.8 + 0.4 * torch.rand(())) + 0.1 * torch.randn(24)
        return signal, self.centre[i, 0]


@torch.no_grad()
def probe(model, data, seed=1234):
    """Error under a fixed disturbance; the random stream of the training goes on as if nothing had been."""
    keep = torch.get_rng_state()
    torch.manual_seed(seed)
    was = model.training
    model.eval()
    total = 0.0
    for x, y in DataLoader(data, batch_size=200):
        total += (model(x + 0.05 * torch.randn_like(x))[:, 0] - y).abs().sum().item()
    model.train(was)
    torch.set_rng_state(keep)
    return total / len(data)


def main():
    torch.manual_seed(33)
    train = Shapes(1500, 1, jitter=True)
    val = Shapes(600, 2, jitter=False)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 24)), nn.Conv1d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv1d(12, 12, 5, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(288, 48), nn.ReLU(), nn.Linear(48, 1),
    )
    loader = DataLoader(train, batch_size=50, sampler=FixedOrder(len(train), seed=5))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=12 * len(loader))
    step = 0
    for epoch in range(12):
        for x, y in loader:
            loss = nn.functional.smooth_l1_loss(model(x)[:, 0], y, beta=0.05)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 60 == 0:
                print(step, f"{loss.item():.4f} probe {probe(model, val):.4f}")
    print("RESULT", probe(model, val))


main()
