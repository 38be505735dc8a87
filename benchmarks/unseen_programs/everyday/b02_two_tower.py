"""Train a recommender with separate optimizers for embeddings and dense layers."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(202)

USERS, ITEMS, DIM = 300, 200, 16
CONFIG = {"steps": 300, "batch": 256, "lr_emb": 0.08, "lr_dense": 2e-3, "log_every": 75}


def make_clicks(n):
    g = torch.Generator().manual_seed(5)
    taste = torch.randn(USERS, 6, generator=g)
    style = torch.randn(ITEMS, 6, generator=g)
    popularity = 0.7 * torch.randn(ITEMS, generator=g)
    u = torch.randint(0, USERS, (n,), generator=g)
    i = torch.randint(0, ITEMS, (n,), generator=g)
    logit = (taste[u] * style[i]).sum(-1) + popularity[i]
    y = (torch.rand(n, generator=g) < torch.sigmoid(1.5 * logit)).float()
    return u, i, y


class Tower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, dim))

    def forward(self, e):
        return e + self.net(e)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        self.user_tower = Tower(DIM)
        self.item_tower = Tower(DIM)
        self.bias = nn.Linear(DIM, 1)

    def forward(self, u, i):
        eu = self.user_tower(self.user(u))
        ei = self.item_tower(self.item(i))
        return (eu * ei).sum(-1) + self.bias(ei).squeeze(-1)

    def parameter_groups(self):
        tables = [self.user.weight, self.item.weight]
        ids = {id(p) for p in tables}
        dense = [p for p in self.parameters() if id(p) not in ids]
        return tables, dense


@torch.no_grad()
def validate(model, u, i, y):
    model.eval()
    loss = F.binary_cross_entropy_with_logits(model(u, i), y)
    model.train()
    return loss.item()


u, i, y = make_clicks(24000)
split = 20000
model = TwoTower()
tables, dense = model.parameter_groups()
opt_emb = torch.optim.Adagrad(tables, lr=CONFIG["lr_emb"])
opt_dense = torch.optim.AdamW(dense, lr=CONFIG["lr_dense"], weight_decay=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=100)

for step in range(CONFIG["steps"]):
    idx = torch.randint(0, split, (CONFIG["batch"],))
    opt_emb.zero_grad()
    opt_dense.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        score = model(u[idx], i[idx])
        loss = F.binary_cross_entropy_with_logits(score.float(), y[idx])
    scaler.scale(loss).backward()

    scaler.step(opt_emb)
    scaler.update()
    scaler.step(opt_dense)
    scaler.update()

    if (step + 1) % CONFIG["log_every"] == 0:
        val = validate(model, u[split:], i[split:], y[split:])
        scale = scaler.get_scale()
        print(f"step {step + 1:4d} train {loss.item():.4f} val {val:.4f} scale {scale:.0f}")

print(f"RESULT {validate(model, u[split:], i[split:], y[split:]):.5f}")
