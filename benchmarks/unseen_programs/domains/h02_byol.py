import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)

DIM, CONTENT, CLASSES = 24, 8, 5
centres = torch.randn(CLASSES, CONTENT)
rot = torch.linalg.qr(torch.randn(DIM, DIM))[0]


def draw(n):
    y = torch.randint(0, CLASSES, (n,))
    z = torch.cat([centres[y] + 0.5 * torch.randn(n, CONTENT), 2 * torch.randn(n, DIM - CONTENT)], 1)
    return z @ rot, y


def view(x):
    z = x @ rot.T
    z = torch.cat([z[:, :CONTENT] + 0.1 * torch.randn(len(x), CONTENT), 2 * torch.randn(len(x), DIM - CONTENT)], 1)
    return z @ rot


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(mlp(DIM, 96, 32), nn.BatchNorm1d(32), mlp(32, 64, 16))
        self.predictor = mlp(16, 64, 16)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False

    def forward(self, a, b):
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        return 4 - 2 * F.cosine_similarity(pa, tb).mean() - 2 * F.cosine_similarity(pb, ta).mean()

    @torch.no_grad()
    def follow(self, tau):
        for o, t in zip(self.online.parameters(), self.target.parameters()):
            t.data = tau * t.data + (1 - tau) * o.data
        for o, t in zip(self.online.buffers(), self.target.buffers()):
            t.copy_(o)


def decay_groups(model):
    groups = {True: [], False: []}
    for p in model.parameters():
        if p.requires_grad:
            groups[p.ndim > 1].append(p)
    return [{"params": groups[True], "weight_decay": 1e-4}, {"params": groups[False], "weight_decay": 0.0}]


def probe(model, train, test):
    net = model.online[0].eval()
    with torch.no_grad():
        f, g = net(train[0]), net(test[0])
        target = F.one_hot(train[1], CLASSES).float()
        f, g = F.pad(f, (0, 1), value=1.0), F.pad(g, (0, 1), value=1.0)
        w = torch.linalg.solve(f.T @ f + 0.1 * torch.eye(f.shape[1]), f.T @ target)
    net.train()
    return ((g @ w).argmax(1) != test[1]).float().mean().item()


def main():
    x, _ = draw(4000)
    train, test = draw(500), draw(1000)
    model = BYOL()
    opt = torch.optim.AdamW(decay_groups(model), lr=1.5e-3)
    total, step = 30 * 20, 0
    print("random features", probe(model, train, test))
    for epoch in range(30):
        for idx in torch.randperm(len(x)).split(200):
            loss = model(view(x[idx]), view(x[idx]))
            opt.zero_grad()
            loss.backward()
            opt.step()
            tau = 1 - 0.05 * (math.cos(math.pi * step / total) + 1) / 2
            model.follow(tau)
            step += 1
        if epoch % 5 == 4:
            print(f"epoch {epoch} loss {loss.item():.4f} tau {tau:.4f} probe error {probe(model, train, test):.3f}")
    print("RESULT", probe(model, train, test))


main()
