import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(51)
torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(30, d)
        self.mix = nn.Sequential(nn.Linear(d, 64), nn.Tanh(), nn.Linear(64, d))
        self.lm = nn.Linear(d, 30)

    def forward(self, ids):
        h = self.emb(ids)
        return h + self.mix(h.cumsum(1) / torch.arange(1, ids.size(1) + 1).view(1, -1, 1))


class ForClassification(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(32, 3)

    def forward(self, ids):
        return self.classifier(self.encoder(ids).mean(1))


group_of = torch.randint(0, 3, (30,))


def docs(n, n_ids=30):
    y = torch.randint(0, 3, (n,))
    probs = torch.where(group_of[:n_ids].unsqueeze(0) == y.unsqueeze(1), 1.0, 0.35)
    return torch.multinomial(probs, 12, replacement=True), y


# stage 1: predict neighbouring tokens from the running context
enc = Encoder()
opt = torch.optim.AdamW(enc.parameters(), lr=3e-3)
for step in range(300):
    ids, _ = docs(64)
    loss = F.cross_entropy(enc.lm(enc(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"stage 1 loss {loss.item():.3f}")

# stage 2: a few labelled documents
model = ForClassification(enc)
xt, yt = docs(96)
xv, yv = docs(1000)
base_lr, head_lr = 2e-5, 2e-2
optimizer = torch.optim.AdamW([
    {"params": [p for n, p in model.named_parameters() if n.startswith("encoder") and "lm" not in n], "lr": base_lr},
    {"params": model.classifier.parameters(), "lr": head_lr},
], weight_decay=0.01)

epochs, bs = 25, 16
total = epochs * math.ceil(len(xt) / bs)
warmup = int(0.1 * total)
it = 0
for epoch in range(epochs):
    for idx in torch.randperm(len(xt)).split(bs):
        scale = (it + 1) / warmup if it < warmup else max(0.0, (total - it) / (total - warmup))
        for g in optimizer.param_groups:
            g["lr"] = head_lr * scale
        loss = F.cross_entropy(model(xt[idx]), yt[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        it += 1
    if epoch % 8 == 0:
        print(f"epoch {epoch} loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    print(f"result: {F.cross_entropy(model(xv), yv).item():.4f}")
