"""Click model: dense layers are updated every batch, the sparse table only now and then."""
import torch
from torch import nn

torch.manual_seed(20)
torch.set_num_threads(1)
ADS, DIM = 200, 12


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.ads = nn.Embedding(ADS, DIM)
        self.deep = nn.Sequential(nn.Linear(DIM + 6, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, ad, context):
        return self.deep(torch.cat([self.ads(ad), context], 1)).squeeze(-1)


def impressions(n, appeal):
    ad, context = torch.randint(0, ADS, (n,)), torch.randn(n, 6)
    return ad, context, 4 * (appeal[ad] + 0.6 * context[:, 0] * context[:, 1])


class LazyTable:
    """Collects gradients of the table and applies them every `every` batches."""

    def __init__(self, table, scaler, every=2):
        self.opt = torch.optim.Adam(table.parameters(), lr=5e-2)
        self.scaler, self.every, self.count = scaler, every, 0
        self.sum = torch.zeros_like(table.weight)
        self.weight = table.weight

    def after_backward(self):
        self.scaler.unscale_(self.opt)
        self.sum += self.weight.grad
        self.count += 1
        if self.count % self.every == 0:
            self.weight.grad.copy_(self.sum / self.every)
            self.opt.step()
            self.sum.zero_()


appeal = torch.randn(ADS)
ad, context, score = impressions(5000, appeal)
adv, contextv, scorev = impressions(1000, appeal)
model = Clicks()
dense = torch.optim.Adam(model.deep.parameters(), lr=8e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22)
lazy = LazyTable(model.ads, scaler)
for step in range(150):
    pick = torch.randint(0, len(ad), (256,))
    model.zero_grad()
    with torch.autocast("cpu", torch.float16):
        out = model(ad[pick], context[pick])
    scaler.scale((out.float() - score[pick]).pow(2).mean()).backward()
    lazy.after_backward()
    scaler.step(dense)
    scaler.update()

with torch.no_grad():
    print("RESULT", float((model(adv, contextv) - scorev).pow(2).mean()))
