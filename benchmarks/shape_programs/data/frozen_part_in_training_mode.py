import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(130)


def tones(n):
    """Short sounds of four instruments, and the same sounds over a bad line."""
    kind = torch.randint(4, (n,))
    t = torch.arange(32) / 32
    pitch = (2 + kind)[:, None] + 0.3 * torch.randn(n, 1)
    clean = torch.sin(6.28 * (pitch * t + torch.rand(n, 1)))
    return clean, clean + 0.2 * torch.randn(n, 32), kind


class Listener(nn.Module):
    """Tells instruments apart; its inner picture of a sound serves to compare sounds."""

    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Dropout(0.6), nn.Linear(128, 96))
        self.name = nn.Sequential(nn.ELU(), nn.Linear(96, 4))

    def forward(self, sound):
        return self.name(self.picture(sound))


class Stage:
    """Fits the parameters of one network to a loss over fresh batches."""

    def __init__(self, module, loss, lr, steps):
        self.module, self.loss, self.steps = module, loss, steps
        self.optimizer = torch.optim.Adam(module.parameters(), lr=lr)

    def run(self):
        self.module.train()
        for step in range(self.steps):
            self.optimizer.zero_grad()
            loss = self.loss(*tones(64))
            loss.backward()
            self.optimizer.step()
            if step % 30 == 29:
                print(f"{type(self.module).__name__} {step} loss {loss.item():.4f}")


def naming(clean, noisy, kind):
    return nn.functional.cross_entropy(listener(clean), kind)


def likeness(clean, noisy, kind):
    return nn.functional.mse_loss(listener.picture(cleaner(noisy)), listener.picture(clean))


listener = Listener()
Stage(listener, naming, 3e-3, 60).run()
listener.requires_grad_(False)

cleaner = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 32))
Stage(cleaner, likeness, 1e-2, 90).run()

cleaner.eval()
with torch.no_grad():
    clean, noisy, _ = tones(1000)
    print("RESULT", nn.functional.mse_loss(cleaner(noisy), clean).item())
