"""Tag the few annotated positions of protein sequences, all other positions being unlabelled."""
import torch
torch.set_num_threads(1)
torch.manual_seed(40)
from torch import nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

RESIDUES, TAGS, LENGTH, UNLABELLED = 20, 4, 40, -100


class Annotated(Dataset):
    def __init__(self, n, density, seed):
        g = torch.Generator().manual_seed(seed)
        self.seq = torch.randint(RESIDUES, (n, LENGTH), generator=g)
        left = torch.roll(self.seq, 1, 1) // 5
        right = torch.roll(self.seq, -1, 1) // 10
        tag = (left + 2 * right + self.seq % 2) % TAGS
        noise = torch.rand(n, LENGTH, generator=g) < 0.05
        tag = torch.where(noise, torch.randint(TAGS, tag.shape, generator=g), tag)
        curated = torch.rand(n, 1, generator=g) < density
        known = curated & (torch.rand(n, LENGTH, generator=g) < 0.3)
        self.tag = torch.where(known, tag, torch.full_like(tag, UNLABELLED))

    def __len__(self):
        return len(self.seq)

    def __getitem__(self, i):
        return self.seq[i], self.tag[i]


class Tagger(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(RESIDUES, dim)
        self.conv1 = nn.Conv1d(dim, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, padding=1)
        self.head = nn.Linear(dim, TAGS)

    def forward(self, seq):
        h = self.embed(seq).transpose(1, 2)
        h = h + F.gelu(self.conv1(h))
        h = h + F.gelu(self.conv2(h))
        return self.head(h.transpose(1, 2))


def tag_loss(logits, tags):
    known = (tags != UNLABELLED).float()
    nll = -torch.log_softmax(logits, 2).gather(2, tags.clamp(min=0)[:, :, None]).squeeze(2)
    return (nll * known).sum() / known.sum()


def train_epoch(model, loader, opt):
    total, count = 0.0, 0
    for seq, tags in loader:
        opt.zero_grad()
        loss = tag_loss(model(seq), tags)
        loss.backward()
        opt.step()
        total += loss.item()
        count += 1
    return total / count


def validate(model, dataset):
    model.eval()
    with torch.no_grad():
        value = tag_loss(model(dataset.seq), dataset.tag).item()
    model.train()
    return value


train_set = Annotated(640, 0.4, 1)
val_set = Annotated(400, 1.0, 2)
loader = DataLoader(train_set, batch_size=4, shuffle=True)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    mean = train_epoch(model, loader, opt)
    print(f"epoch {epoch} train {mean:.4f} val {validate(model, val_set):.4f}")
print("RESULT", validate(model, val_set))
