"""Pairwise ranking of tracks for listeners; unheard tracks are drawn for comparison."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
SEED, LISTENERS, TRACKS, DIM = 2, 400, 900, 16


def history():
    rng = np.random.default_rng(SEED)
    taste = rng.normal(size=(LISTENERS, 5))
    style = rng.normal(size=(TRACKS, 5))
    heard, held = [], []
    for u in range(LISTENERS):
        score = style @ taste[u] + rng.gumbel(size=TRACKS)
        top = np.argsort(-score)[:24]
        rng.shuffle(top)
        heard += [(u, t) for t in top[:20]]
        held += [(u, t) for t in top[20:]]
    return torch.tensor(np.array(heard)), torch.tensor(np.array(held))


def draw_unheard(count):
    rng = np.random.default_rng(SEED)
    return torch.from_numpy(rng.integers(0, TRACKS, size=count))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.listener = nn.Embedding(LISTENERS, DIM)
        self.track = nn.Embedding(TRACKS, DIM)
        self.popular = nn.Embedding(TRACKS, 1)
        for e in (self.listener, self.track):
            nn.init.normal_(e.weight, std=0.1)
        nn.init.zeros_(self.popular.weight)

    def forward(self, u, t):
        return (self.listener(u) * self.track(t)).sum(-1) + self.popular(t).squeeze(-1)

    def all_scores(self, u):
        return self.listener(u) @ self.track.weight.T + self.popular.weight.T


def miss_rate(model, heard, held, k=60):
    with torch.no_grad():
        scores = model.all_scores(torch.arange(LISTENERS))
        scores[heard[:, 0], heard[:, 1]] = -1e9
        top = scores.topk(k, dim=1).indices
    hit = (top[held[:, 0]] == held[:, 1:]).any(1)
    return 1 - hit.float().mean().item()


def train():
    torch.manual_seed(SEED)
    heard, held = history()
    model = Ranker()
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-5)
    for epoch in range(20):
        for idx in torch.randperm(len(heard)).split(200):
            u, t = heard[idx].unbind(1)
            other = draw_unheard(len(idx))
            loss = -F.logsigmoid(model(u, t) - model(u, other)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch}: {loss.item():.4f} miss {miss_rate(model, heard, held):.3f}")
    return miss_rate(model, heard, held)


if __name__ == "__main__":
    print("RESULT", train())
