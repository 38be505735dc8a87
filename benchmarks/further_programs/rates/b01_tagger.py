import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(4)

EPOCHS, BATCH, ACCUM, LR = 6, 8, 4, 0.04


def make(n, g):
    w = torch.randint(0, 40, (n, 12), generator=g)
    prev = torch.roll(w, 1, 1)
    prev[:, 0] = 0
    tag = ((w * 7 + prev * 3) % 11) // 2
    noise = torch.rand(n, 12, generator=g) < 0.15
    tag = torch.where(noise, torch.randint(0, 6, (n, 12), generator=g), tag)
    return w, tag


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, 32)
        self.conv = nn.Conv1d(32, 96, 3, padding=1)
        self.out = nn.Linear(96, 6)

    def forward(self, w):
        h = self.conv(self.emb(w).transpose(1, 2)).relu()
        return self.out(h.transpose(1, 2))


g = torch.Generator().manual_seed(0)
train_w, train_t = make(1600, g)
val_w, val_t = make(600, g)
model = Tagger()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
n_batches = len(train_w) // BATCH
total_updates = EPOCHS * n_batches // ACCUM
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_updates)

for epoch in range(EPOCHS):
    model.train()
    perm = torch.randperm(len(train_w), generator=g)
    for i in range(n_batches):
        idx = perm[i * BATCH:(i + 1) * BATCH]
        loss = loss_fn(model(train_w[idx]).flatten(0, 1), train_t[idx].flatten())
        (loss / ACCUM).backward()
        if (i + 1) % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        val = loss_fn(model(val_w).flatten(0, 1), val_t.flatten()).item()
    print(f"epoch {epoch} loss {loss.item():.3f} val {val:.3f}")

print("RESULT", val)
