"""Fit soft votes; the loss is reported as a divergence, so the votes' own entropy is taken off."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(4)
W = torch.randn(12, 5, generator=gen)
X = torch.randn(800, 12, generator=gen)
votes = torch.distributions.Multinomial(40, logits=X @ W * 0.6).sample() / 40

model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 5))
opt = torch.optim.AdamW(model.parameters(), lr=6e-3)


def divergence(logits, votes):
    cross = -(votes * F.log_softmax(logits, -1)).sum(-1).mean()
    own = torch.special.entr(votes).sum(-1).mean()
    return cross - own


for epoch in range(12):
    for idx in torch.randperm(600, generator=gen).split(60):
        loss = divergence(model(X[idx]), votes[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
model.eval()
with torch.no_grad():
    print("RESULT", float(divergence(model(X[600:]), votes[600:])))
