"""Trains a click model with crossed features in bfloat16 autocast and reports its log loss."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(139)

FIELDS, VALUES = 6, 40


def impressions(n, seed):
    g = torch.Generator().manual_seed(seed)
    truth = torch.Generator().manual_seed(0)
    effect = 2.2 * torch.randn(FIELDS, VALUES, generator=truth)
    cross = 1.5 * torch.randn(8, 8, generator=truth)
    ids = torch.randint(0, VALUES, (n, FIELDS), generator=g)
    logit = effect[torch.arange(FIELDS), ids].sum(1) - 1.0
    logit = logit + cross[ids[:, 0] % 8, ids[:, 1] % 8]
    click = (torch.rand(n, generator=g) < torch.sigmoid(logit)).float()
    return ids, click


class ClickModel(nn.Module):
    """Linear terms, pairwise products and a small deep part."""

    def __init__(self, dim=8):
        super().__init__()
        self.linear = nn.Embedding(FIELDS * VALUES, 1)
        self.factor = nn.Embedding(FIELDS * VALUES, dim)
        nn.init.normal_(self.linear.weight, std=0.01)
        nn.init.normal_(self.factor.weight, std=0.1)
        self.deep = nn.Sequential(nn.Linear(FIELDS * dim, 48), nn.ReLU(), nn.Linear(48, 1))
        self.register_buffer("base", torch.arange(FIELDS) * VALUES)

    def forward(self, ids):
        rows = ids + self.base
        v = self.factor(rows)
        pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(-1)
        first = self.linear(rows).sum((1, 2))
        deep = self.deep(v.flatten(1)).squeeze(-1)
        return deep + first.to(deep.dtype) + pairs.to(deep.dtype)


def log_loss(prob, click, eps=1e-7):
    prob = prob.clamp(eps, 1 - eps)
    return -(click * prob.log() + (1 - click) * (1 - prob).log()).mean()


class Session:
    def __init__(self, precision=torch.bfloat16):
        self.precision = precision
        self.model = ClickModel()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.criterion = nn.BCEWithLogitsLoss()

    def autocast(self):
        return torch.autocast("cpu", dtype=self.precision)

    def train_step(self, ids, click):
        with self.autocast():
            loss = self.criterion(self.model(ids), click)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, ids, click):
        self.model.eval()
        with self.autocast():
            logits = self.model(ids)
        prob = torch.sigmoid(logits)
        value = log_loss(prob, click.to(prob.dtype)).item()
        self.model.train()
        return value


session = Session()
train_ids, train_click = impressions(8000, 1)
val_ids, val_click = impressions(2000, 2)
for epoch in range(4):
    for pick in torch.randperm(len(train_ids)).split(125):
        loss = session.train_step(train_ids[pick], train_click[pick])
    print(f"epoch {epoch} train {loss:.4f} log loss {session.evaluate(val_ids, val_click):.4f}")
print("RESULT", session.evaluate(val_ids, val_click))
