"""Will the user click the candidate? Pool the history by attention."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
ITEMS, GENRES, MAXLEN = 60, 6, 20


def sample_users(n, gen):
    taste = torch.randint(0, GENRES, (n,), generator=gen)
    length = torch.randint(3, MAXLEN + 1, (n,), generator=gen)
    hist = torch.randint(0, ITEMS // GENRES, (n, MAXLEN), generator=gen) * GENRES + taste[:, None]
    hist = hist + 1
    hist[torch.arange(MAXLEN)[None] >= length[:, None]] = 0
    cand = torch.randint(0, ITEMS, (n,), generator=gen)
    same = torch.rand(n, generator=gen) < 0.5
    cand = torch.where(same, cand // GENRES * GENRES + taste, cand)
    click = (cand % GENRES == taste).float()
    return hist, cand + 1, click


def presence_bias(hist, dtype):
    seen = hist.ne(0)
    return torch.where(seen, torch.finfo(dtype).min / 4, 0.0)


class Interest(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.items = nn.Embedding(ITEMS + 1, d)
        self.query = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(3 * d, 48), nn.PReLU(), nn.Linear(48, 1))

    def forward(self, hist, cand):
        h, c = self.items(hist), self.items(cand)
        score = torch.einsum("bld,bd->bl", h, self.query(c)) / h.shape[-1] ** 0.5
        weight = F.softmax(score + presence_bias(hist, score.dtype), dim=-1)
        user = torch.einsum("bl,bld->bd", weight, h)
        return self.mlp(torch.cat([user, c, user * c], -1)).squeeze(-1)


gen = torch.Generator().manual_seed(7)
model = Interest()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(120):
    hist, cand, click = sample_users(128, gen)
    loss = F.binary_cross_entropy_with_logits(model(hist, cand), click)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())

model.eval()
hist, cand, click = sample_users(1000, gen)
with torch.no_grad():
    print("RESULT", float(F.binary_cross_entropy_with_logits(model(hist, cand), click)))
