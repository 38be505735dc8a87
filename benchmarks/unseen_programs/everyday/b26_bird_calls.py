"""Train a convolutional network on spectrograms of bird calls with a one-cycle schedule."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(2626)


class BirdCalls(Dataset):
    """Chirps whose sweep, pitch and repetition depend on the species."""

    species = 6
    bins, frames = 20, 24
    log_mean, log_std = -1.7, 1.1

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.label = torch.randint(0, self.species, (n,), generator=g)
        t = torch.linspace(0, 1, self.frames)
        f = torch.arange(self.bins).float().view(1, -1, 1)
        lab = self.label.float().view(-1, 1)
        pitch = 5 + 1.6 * lab + torch.randn(n, 1, generator=g)
        sweep = 5 * torch.sin(3.1 * (t + 0.2 * torch.rand(n, 1, generator=g)) * (1 + lab % 3))
        line = (pitch + sweep).unsqueeze(1)
        spec = torch.exp(-0.4 * (f - line) ** 2)
        rain = torch.rand(n, self.bins, self.frames, generator=g)
        self.spec = torch.log(spec + 0.5 * rain ** 2 + 1e-2).unsqueeze(1)
        self.spec = (self.spec - self.log_mean) / self.log_std

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.spec[i], self.label[i]


class CallNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.c1 = nn.Conv2d(1, width, 3, padding=1)
        self.c2 = nn.Conv2d(width, width, 3, padding=1)
        self.c3 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width, BirdCalls.species)

    def forward(self, x):
        x = F.max_pool2d(F.gelu(self.c1(x)), 2)
        x = F.max_pool2d(F.gelu(self.c2(x)), 2)
        x = F.gelu(self.c3(x))
        return self.head(x.mean((2, 3)))


class Trainer:
    def __init__(self, model, train_set, val_set, epochs=6, batch_size=40, max_lr=0.15):
        self.model = model
        self.epochs = epochs
        self.train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
        self.val_loader = DataLoader(val_set, batch_size=200)
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=max_lr, momentum=0.9, weight_decay=1e-4)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=max_lr, total_steps=epochs * len(train_set))

    def train(self):
        for epoch in range(self.epochs):
            self.model.train()
            total = 0.0
            for spec, label in self.train_loader:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    logits = self.model(spec)
                loss = F.cross_entropy(logits.float(), label)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                total += loss.item()
            mean = total / len(self.train_loader)
            print(f"epoch {epoch} train {mean:.4f} val {self.validate():.4f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = sum(F.cross_entropy(self.model(s), y, reduction="sum").item()
                    for s, y in self.val_loader)
        return total / len(self.val_loader.dataset)


trainer = Trainer(CallNet(), BirdCalls(1600, seed=1), BirdCalls(400, seed=2))
trainer.train()
print(f"RESULT {trainer.validate():.5f}")
