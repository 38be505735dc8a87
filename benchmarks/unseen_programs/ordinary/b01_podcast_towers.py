"""Two-tower retrieval for podcast episodes: listening history -> next episode."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)

N_SHOWS, N_TOPICS, HIST, DIM = 300, 12, 8, 32
EPS = 1e-8

topic_of = torch.randint(0, N_TOPICS, (N_SHOWS,))
shows_by_topic = [torch.nonzero(topic_of == t).flatten() for t in range(N_TOPICS)]


def sample_listeners(n):
    taste = torch.randint(0, N_TOPICS, (n,))
    length = torch.randint(0, HIST + 1, (n,))
    history = torch.zeros(n, HIST, dtype=torch.long)
    target = torch.zeros(n, dtype=torch.long)
    for i in range(n):
        pool = shows_by_topic[taste[i]]
        k = int(length[i])
        history[i, :k] = pool[torch.randint(0, len(pool), (k,))] + 1
        target[i] = pool[torch.randint(0, len(pool), (1,))]
    return history, target


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = nn.Embedding(N_SHOWS + 1, 48, padding_idx=0)
        self.user = nn.Linear(48, DIM, bias=False)
        self.show = nn.Embedding(N_SHOWS, 48)
        self.item = nn.Linear(48, DIM, bias=False)

    @staticmethod
    def unit(v):
        return v / (v.norm(dim=-1, keepdim=True) + EPS)

    def forward(self, history):
        n = (history > 0).sum(1, keepdim=True).clamp(min=1)
        u = self.user(self.history(history).sum(1) / n)
        i = self.item(self.show.weight)
        return 12.0 * self.unit(u) @ self.unit(i).t()


hist, nxt = sample_listeners(3000)
hist_val, nxt_val = sample_listeners(600)
model = TwoTower()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(8):
    perm = torch.randperm(len(hist))
    running = 0.0
    for b in perm.split(100):
        with torch.autocast("cpu", torch.float16):
            scores = model(hist[b])
        loss = F.cross_entropy(scores.float(), nxt[b])
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    print(f"epoch {epoch}: sampled softmax {running / 30:.3f}")

with torch.no_grad():
    val = F.cross_entropy(model(hist_val).float(), nxt_val)
print("RESULT", float(val))
