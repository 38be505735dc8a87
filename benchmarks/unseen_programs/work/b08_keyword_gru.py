"""Spoken keyword classifier: a GRU over time-major feature frames."""
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(8)

FRAMES, FEATURES, WORDS = 18, 20, 10


def synth_keywords(n, bank, gen):
    """Each word is a path through three phones; speakers differ in tempo and timbre."""
    phones, words = bank
    label = torch.randint(0, WORDS, (n,), generator=gen)
    tempo = 0.8 + 0.4 * torch.rand(n, 1, generator=gen)
    place = (torch.arange(FRAMES)[None] / FRAMES * 3 * tempo).clamp(max=2.99).long()
    seq = words[label].gather(1, place)
    timbre = 0.4 * torch.randn(n, 1, FEATURES, generator=gen)
    x = phones[seq] + timbre + 0.9 * torch.randn(n, FRAMES, FEATURES, generator=gen)
    return x, label


def collate_time_major(x, label, batch, gen):
    for chunk in torch.randperm(len(x), generator=gen).split(batch):
        yield x[chunk].transpose(0, 1).contiguous(), label[chunk]


class KeywordNet(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.gru = nn.GRU(FEATURES, hidden)
        self.head = nn.Sequential(
            nn.Linear(FRAMES * hidden, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, WORDS)
        )

    def forward(self, frames):
        states, _ = self.gru(self.norm(frames))
        states = states.reshape(frames.shape[1], -1)
        return self.head(states)


class Runner:
    def __init__(self, model, folder):
        self.model, self.folder = model, Path(folder)
        self.opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
        self.best = float("inf")

    @torch.no_grad()
    def validate(self, x, label):
        self.model.eval()
        frames = x.transpose(0, 1).contiguous()
        loss = F.cross_entropy(self.model(frames), label).item()
        self.model.train()
        return loss

    def fit(self, train, val, epochs, gen):
        for epoch in range(epochs):
            for frames, label in collate_time_major(*train, 64, gen):
                loss = F.cross_entropy(self.model(frames), label)
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
                self.opt.step()
            v = self.validate(*val)
            print(f"epoch {epoch} train {loss.item():.3f} val {v:.3f}")
            if v < self.best:
                self.best = v
                torch.save(self.model.state_dict(), self.folder / "best.pt")
        self.model.load_state_dict(torch.load(self.folder / "best.pt"))


def main():
    gen = torch.Generator().manual_seed(80)
    phones = 1.2 * torch.randn(7, FEATURES, generator=gen)
    words = torch.stack([torch.randperm(7, generator=gen)[:3] for _ in range(WORDS)])
    train = synth_keywords(1600, (phones, words), gen)
    val = synth_keywords(400, (phones, words), gen)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(KeywordNet(), folder)
        runner.fit(train, val, 8, gen)
    print(f"RESULT {runner.validate(*val):.5f}")


if __name__ == "__main__":
    main()
