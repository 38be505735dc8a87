"""Train a two-tower model that scores shoppers against products from purchase records."""
import torch
torch.set_num_threads(1)
torch.manual_seed(11)
from torch import nn
import torch.nn.functional as F

N_USERS, N_ITEMS, LATENT = 600, 300, 6


def purchase_log(n):
    g = torch.Generator().manual_seed(5)
    u_taste = torch.randn(N_USERS, LATENT, generator=g)
    i_taste = torch.randn(N_ITEMS, LATENT, generator=g)
    price = torch.rand(N_ITEMS, generator=g) * 3
    users = torch.randint(N_USERS, (n,), generator=g)
    items = torch.randint(N_ITEMS, (n,), generator=g)
    score = (u_taste[users] * i_taste[items]).sum(1) * 0.8 - 0.4 * (price[items] - 1.5)
    bought = (score + torch.randn(n, generator=g) * 0.5 > 0).float()
    return users, items, price[items], bought


class Tower(nn.Module):
    def __init__(self, n, extra=0, dim=16):
        super().__init__()
        self.table = nn.Embedding(n, dim)
        nn.init.normal_(self.table.weight, std=0.3)
        self.mlp = nn.Sequential(nn.Linear(dim + extra, 48), nn.ReLU(), nn.Linear(48, dim))

    def forward(self, idx, extra=None):
        v = self.table(idx)
        if extra is not None:
            v = torch.cat([v, extra[:, None]], 1)
        return v[:, :16] + self.mlp(v)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.shopper = Tower(N_USERS)
        self.product = Tower(N_ITEMS, extra=1)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, u, i, price):
        return (self.shopper(u) * self.product(i, price)).sum(1) + self.bias


users, items, price, bought = purchase_log(40000)
cut = 36000
model = TwoTower()
table_params = [model.shopper.table.weight, model.product.table.weight]
dense_params = [p for n, p in model.named_parameters() if "table" not in n]
opt_table = torch.optim.Adagrad(table_params, lr=0.12)
opt_dense = torch.optim.SGD(dense_params, lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=40)


def validate():
    model.eval()
    with torch.no_grad():
        logit = model(users[cut:], items[cut:], price[cut:])
    model.train()
    return F.binary_cross_entropy_with_logits(logit, bought[cut:]).item()


step, batch = 0, 512
for epoch in range(5):
    order = torch.randperm(cut)
    for start in range(0, cut - batch + 1, batch):
        rows = order[start:start + batch]
        opt_table.zero_grad()
        opt_dense.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logit = model(users[rows], items[rows], price[rows])
            loss = F.binary_cross_entropy_with_logits(logit.float(), bought[rows])
        scaler.scale(loss).backward()
        for opt in (opt_table, opt_dense):
            scaler.step(opt)
            scaler.update()
        step += 1
    print(f"epoch {epoch} step {step} train {loss.item():.4f} val {validate():.4f} "
          f"scale {scaler.get_scale():.0f}")

print("RESULT", validate())
