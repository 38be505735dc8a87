"""Data-parallel training, the two workers simulated in one process."""
import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
WORLD = 2


def build_trunk():
    return nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())


class Worker:
    def __init__(self, rank, trunk, shard):
        self.rank, self.shard = rank, shard
        self.net = nn.Sequential()
        self.net.add_module("trunk", copy.deepcopy(trunk))
        self.gen = torch.Generator().manual_seed(100 + rank)

    def attach_head(self, head):
        self.net.add_module("head", copy.deepcopy(head))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    def backward(self):
        x, y = self.shard
        idx = torch.randint(len(x), (32,), generator=self.gen)
        self.opt.zero_grad()
        loss = F.cross_entropy(self.net(x[idx]), y[idx])
        loss.backward()
        return loss.item()


def all_reduce_mean(buckets):
    for tensors in buckets:
        mean = torch.stack([t.grad for t in tensors]).mean(0)
        for t in tensors:
            t.grad.copy_(mean)


def make_data(n, gen, centers):
    y = torch.randint(0, 6, (n,), generator=gen)
    return centers[y] + 1.3 * torch.randn(n, 20, generator=gen), y


def main():
    torch.manual_seed(21)
    gen = torch.Generator().manual_seed(1)
    centers = torch.randn(6, 20, generator=gen)
    x, y = make_data(1200, gen, centers)
    vx, vy = make_data(800, gen, centers)
    order = (y + 0.8 * torch.rand(len(y), generator=gen) * 6).argsort()
    x, y = x[order], y[order]
    half = len(x) // WORLD
    trunk, head = build_trunk(), nn.Linear(32, 6)
    workers = [Worker(r, trunk, (x[r * half:(r + 1) * half], y[r * half:(r + 1) * half])) for r in range(WORLD)]
    buckets = list(zip(*[list(w.net.parameters()) for w in workers]))
    for w in workers:
        w.attach_head(head)
    for step in range(300):
        losses = [w.backward() for w in workers]
        all_reduce_mean(buckets)
        for w in workers:
            w.opt.step()
        if step % 100 == 0:
            print("step", step, "loss", sum(losses) / WORLD)
    net = workers[0].net.eval()
    with torch.no_grad():
        print("RESULT", F.cross_entropy(net(vx), vy).item())


if __name__ == "__main__":
    main()
