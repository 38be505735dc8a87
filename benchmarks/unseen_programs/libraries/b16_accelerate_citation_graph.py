"""Node classification on a synthetic citation graph with accelerate and accumulation."""
import argparse
import math

import torch

torch.set_num_threads(1)
torch.manual_seed(27)

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def citation_graph(n=1200, classes=6, dim=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    proto = torch.randn(classes, dim, generator=g)
    x = 0.5 * proto[y] + torch.randn(n, dim, generator=g)
    same = y[:, None] == y[None, :]
    p = torch.where(same, 0.012, 0.0015)
    a = torch.triu((torch.rand(n, n, generator=g) < p).float(), diagonal=1)
    a = a + a.T + torch.eye(n)
    d = a.sum(1).rsqrt()
    return x, y, d[:, None] * a * d[None, :]


class GCN(nn.Module):
    def __init__(self, dim, width, classes):
        super().__init__()
        self.l1, self.l2 = nn.Linear(dim, width), nn.Linear(width, classes)

    def forward(self, adj, x, nodes):
        h = torch.relu(adj @ self.l1(x))
        return adj[nodes] @ self.l2(h)


def warmup_cosine(optimizer, warmup, total):
    def factor(step):
        if step < warmup:
            return step / max(1, warmup)
        done = (step - warmup) / max(1, total - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--gradient_accumulation_steps", type=int, default=8)
    p.add_argument("--lr_warmup_steps", type=int, default=10)
    return p.parse_args()


def main():
    args = parse()
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps, cpu=True
    )
    x, y, adj = citation_graph()
    order = torch.randperm(len(y))
    train_nodes, valid_nodes = order[:800], order[800:]
    model = GCN(x.shape[1], 32, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loader = DataLoader(train_nodes, batch_size=args.batch, shuffle=True)
    updates_per_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
    max_train_steps = args.epochs * updates_per_epoch
    schedule = warmup_cosine(
        optimizer,
        args.lr_warmup_steps * args.gradient_accumulation_steps,
        max_train_steps * args.gradient_accumulation_steps,
    )
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    for epoch in range(args.epochs):
        total = 0.0
        for nodes in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(adj, x, nodes), y[nodes])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            total += loss.item()
        lr = schedule.get_last_lr()[0]
        accelerator.print(f"epoch {epoch} loss {total / len(loader):.4f} lr {lr:.4f}")
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(adj, x, valid_nodes), y[valid_nodes])
    print(f"RESULT {loss.item():.4f}")


if __name__ == "__main__":
    main()
