"""Estimate breathing effort, frame by frame, from chest sensor recordings."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Recordings(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(6, 16, (1,), generator=g))
            if torch.rand(1, generator=g) < 0.06:
                length = 90
            x = 0.6 * torch.randn(length, 3, generator=g)
            effort = 2.5 + x[:, 0] - 0.5 * x[:, 1].abs() + x[:, 2] ** 2
            self.items.append((x, effort))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    xs, ys = zip(*batch)
    frames = torch.tensor([len(x) for x in xs])
    return pad_sequence(xs, batch_first=True), pad_sequence(ys, batch_first=True), frames


class PerFrame(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, width, 3, padding=1), nn.GELU(),
            nn.Conv1d(width, width, 1), nn.GELU(), nn.Conv1d(width, 1, 1))

    def forward(self, x):
        return self.net(x.transpose(1, 2)).squeeze(1)


def objective(pred, want, frames):
    per_clip = (pred - want).abs().mean(dim=1)
    return per_clip.mean()


loader = DataLoader(Recordings(320, 1), 32, shuffle=True, collate_fn=collate)
model = PerFrame()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(12):
    for x, y, frames in loader:
        opt.zero_grad()
        loss = objective(model(x), y, frames)
        loss.backward()
        opt.step()
    print("epoch", epoch, loss.item())

model.eval()
with torch.no_grad():
    errs = [(model(x[None])[0] - y).abs().mean() for x, y in Recordings(60, 2)]
print("RESULT", float(torch.stack(errs).mean()))
