"""Tag prediction for songs from their audio descriptors; listeners submit tags."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
TAGS = 12
taste = torch.randn(16, TAGS)


class Songs(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.sound = torch.randn(n, 16, generator=g)
        fit = (self.sound @ taste / 4 - 0.5).sigmoid()
        self.has = torch.rand(n, TAGS, generator=g) < fit
        fans = torch.randint(1, 6, (n, TAGS), generator=g)
        self.submitted = [torch.arange(TAGS)[h].repeat_interleave(f[h]) for h, f in zip(self.has, fans)]

    def __len__(self):
        return len(self.sound)

    def __getitem__(self, i):
        return self.sound[i], self.submitted[i]


def collate(items):
    sound = torch.stack([s for s, _ in items])
    labels = torch.zeros(len(items), TAGS)
    for row, (_, tags) in zip(labels, items):
        row.index_add_(0, tags, torch.ones(len(tags)))
    return sound, labels


songs = Songs(640, 1)
loader = DataLoader(songs, batch_size=32, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, TAGS))
criterion = nn.MultiLabelSoftMarginLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(6):
    for sound, labels in loader:
        loss = criterion(model(sound), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

test = Songs(1000, 2)
with torch.no_grad():
    p = model(test.sound).sigmoid()
    brier = (p - test.has.float()).pow(2).mean()
print("RESULT", brier.item())
