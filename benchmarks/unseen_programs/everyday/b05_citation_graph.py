"""Classify the nodes of a citation graph with a graph convolution network in fp16 autocast."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(55)

NODES, TOPICS, WORDS = 400, 5, 60


def make_graph():
    topic = torch.randint(0, TOPICS, (NODES,))
    same = topic[:, None] == topic[None, :]
    prob = torch.where(same, 0.04, 0.006)
    adj = (torch.rand(NODES, NODES) < prob).float().triu(1)
    adj = adj + adj.t() + torch.eye(NODES)
    deg = adj.sum(1)
    adj = adj / torch.sqrt(deg[:, None] * deg[None, :])
    rate = 0.3 + 1.0 * (torch.rand(TOPICS, WORDS) < 0.15).float()
    bag = torch.poisson(rate[topic] * 0.6)
    return adj, torch.log1p(bag), topic


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)

    def forward(self, h, adj):
        return adj @ self.lin(h)


class GCN(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.c1 = GraphConv(WORDS, width)
        self.c2 = GraphConv(width, width)
        self.c3 = GraphConv(width, TOPICS)
        self.drop = nn.Dropout(0.4)

    def forward(self, x, adj):
        h = self.drop(F.relu(self.c1(x, adj)))
        h = self.drop(h + F.relu(self.c2(h, adj)))
        return self.c3(h, adj)


def grads_ok(params):
    return all(torch.isfinite(p.grad).all() for p in params if p.grad is not None)


adj, bag, topic = make_graph()
order = torch.randperm(NODES)
train, val = order[:160], order[160:]
model = GCN()
params = list(model.parameters())
optimizer = torch.optim.Adam(params, lr=5e-3, weight_decay=5e-4)
scaler = torch.amp.GradScaler("cpu")
skipped = 0

for step in range(150):
    model.train()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(bag, adj)
        loss = F.cross_entropy(logits[train], topic[train], reduction="sum")
    scaler.scale(loss).backward()

    if not grads_ok(params):
        skipped += 1
        continue

    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(params, 50.0)
    scaler.step(optimizer)
    scaler.update()

    if step % 30 == 0:
        print(f"step {step} loss {loss.item() / len(train):.4f}")

model.eval()
with torch.no_grad():
    logits = model(bag, adj)
    val_loss = F.cross_entropy(logits[val], topic[val]).item()
    acc = (logits[val].argmax(1) == topic[val]).float().mean().item()
print(f"skipped {skipped} accuracy {acc:.3f}")
print(f"RESULT {val_loss:.5f}")
