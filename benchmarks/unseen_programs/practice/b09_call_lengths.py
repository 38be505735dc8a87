"""Predict customer mood from call turns of uneven length, batched by length buckets."""
import torch
torch.set_num_threads(1)
torch.manual_seed(52)
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Calls(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        axis = torch.randn(10, generator=torch.Generator().manual_seed(1))
        self.turns, self.mood = [], []
        for _ in range(n):
            length = int(torch.randint(3, 36, (1,), generator=g))
            mood = torch.randn(1, generator=g)
            drift = mood * torch.linspace(0.2, 1, length)[:, None] * axis
            self.turns.append(drift + torch.randn(length, 10, generator=g))
            self.mood.append(mood)

    def __len__(self):
        return len(self.turns)

    def __getitem__(self, i):
        return self.turns[i], self.mood[i]


class BucketSampler(Sampler):
    """Yields lists of indices whose sequences have similar lengths."""

    def __init__(self, lengths, batch_size, width):
        self.batch_size = batch_size
        self.buckets = {}
        for i, n in enumerate(lengths):
            self.buckets.setdefault(n // width, []).append(i)

    def __iter__(self):
        batches = []
        for rows in self.buckets.values():
            rows = [rows[k] for k in torch.randperm(len(rows)).tolist()]
            full = len(rows) // self.batch_size
            for k in range(full):
                batches.append(rows[k * self.batch_size:(k + 1) * self.batch_size])
        for k in torch.randperm(len(batches)).tolist():
            yield batches[k]


def collate(pairs):
    turns, mood = zip(*pairs)
    lengths = torch.tensor([len(t) for t in turns])
    return pad_sequence(turns, batch_first=True), lengths, torch.stack(mood)


class MoodNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(10, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x, lengths):
        h, _ = self.rnn(x)
        keep = (torch.arange(x.shape[1]) < lengths[:, None]).unsqueeze(2)
        return self.out((h * keep).sum(1) / lengths[:, None])


def validate(model, loader):
    model.eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for x, lengths, mood in loader:
            total += F.mse_loss(model(x, lengths), mood, reduction="sum").item()
            n += len(mood)
    return total / n


train_set, val_set = Calls(640, 1), Calls(200, 2)
sampler = BucketSampler([len(t) for t in train_set.turns], batch_size=128, width=6)
train_loader = DataLoader(train_set, batch_sampler=sampler, collate_fn=collate)
val_loader = DataLoader(val_set, batch_size=100, collate_fn=collate)

model = MoodNet()
opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
for epoch in range(12):
    model.train()
    for x, lengths, mood in train_loader:
        loss = F.mse_loss(model(x, lengths), mood)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    print(f"epoch {epoch} val {validate(model, val_loader):.4f}")
print("RESULT", validate(model, val_loader))
