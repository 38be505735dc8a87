"""Dense graph attention on a citation-like network, with a penalty that sharpens attention."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)

N, CLASSES, FEATS = 180, 4, 24
label = torch.randint(0, CLASSES, (N,))
same = label[:, None] == label[None]
adj = torch.rand(N, N) < torch.where(same, 0.12, 0.02)
adj = adj | adj.t() | torch.eye(N, dtype=torch.bool)
proto = torch.randn(CLASSES, FEATS)
feats = 0.6 * proto[label] + 1.3 * torch.randn(N, FEATS)
train_mask = torch.rand(N) < 0.3


class GraphAttention(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o, bias=False)
        self.src = nn.Parameter(torch.randn(o) * 0.1)
        self.dst = nn.Parameter(torch.randn(o) * 0.1)

    def forward(self, h, adj):
        z = self.lin(h)
        e = F.leaky_relu((z @ self.src)[:, None] + (z @ self.dst)[None], 0.2)
        alpha = e.masked_fill(~adj, float("-inf")).softmax(dim=1)
        return alpha @ z, alpha


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GraphAttention(FEATS, 16)
        self.second = GraphAttention(16, CLASSES)

    def forward(self, x):
        h, a1 = self.first(x, adj)
        out, a2 = self.second(F.dropout(F.elu(h), 0.3, self.training), adj)
        return out, (a1, a2)


def attention_entropy(alpha):
    return -(alpha * torch.log(alpha)).sum(1).mean()


model = GAT()
opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(150):
    model.train()
    opt.zero_grad()
    logits, attention = model(feats)
    ce = F.cross_entropy(logits[train_mask], label[train_mask])
    sharp = sum(attention_entropy(a) for a in attention)
    loss = ce + 0.02 * sharp
    loss.backward()
    opt.step()
    if epoch % 30 == 0:
        print(epoch, "ce %.4f entropy %.4f" % (ce.item(), sharp.item()))

model.eval()
with torch.no_grad():
    logits, _ = model(feats)
    print("RESULT", F.cross_entropy(logits[~train_mask], label[~train_mask]).item())
