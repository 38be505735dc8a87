"""Classifies spoken commands of different lengths from frames of a synthetic filter bank."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(31)

BANDS, WORDS = 10, 8
templates = torch.randn(WORDS, 6, BANDS)


class Commands(Dataset):
    """A word is a series of six sounds, each of which is held for a varying time."""

    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            word = int(torch.randint(0, WORDS, (1,), generator=gen))
            slow = int(torch.randint(1, 9, (1,), generator=gen))
            hold = torch.randint(slow, slow + 3, (6,), generator=gen)
            frames = templates[word].repeat_interleave(hold, dim=0)
            frames = frames + 1.2 * torch.randn(frames.shape, generator=gen)
            self.items.append((frames, word))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    frames, words = zip(*items)
    lengths = torch.tensor([len(f) for f in frames])
    return pad_sequence(frames, batch_first=True), lengths, torch.tensor(words)


class Recogniser(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.project = nn.Linear(BANDS, hidden)
        self.rnn = nn.RNN(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, WORDS)

    def forward(self, frames, lengths):
        out, _ = self.rnn(torch.relu(self.project(frames)))
        last = out[:, -1]
        return self.head(last)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, count = 0.0, 0
    for frames, lengths, words in loader:
        total += F.cross_entropy(model(frames, lengths), words, reduction="sum").item()
        count += len(words)
    model.train()
    return total / count


def main():
    train = DataLoader(Commands(1200, 1), batch_size=48, shuffle=True, collate_fn=collate)
    val = DataLoader(Commands(400, 2), batch_size=100, collate_fn=collate)
    model = Recogniser()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(10):
        for frames, lengths, words in train:
            loss = F.cross_entropy(model(frames, lengths), words)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} val {validate(model, val):.4f}")
    print("RESULT", round(validate(model, val), 4))


main()
