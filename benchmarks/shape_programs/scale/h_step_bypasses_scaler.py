"""Click model: the table is pretrained in single precision, later both parts in half precision."""
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


def step_with(scaler):
    """How to go from a loss to new weights, with or without a loss scale."""
    if scaler is None:
        def go(loss):
            loss.backward()
            opt.step()
    else:
        def go(loss):
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return go


appeal = torch.randn(ADS)
ad, context, score = impressions(5000, appeal)
adv, contextv, scorev = impressions(1000, appeal)
model = Clicks()
opt = torch.optim.Adam([{"params": model.ads.parameters(), "lr": 5e-2}, {"params": model.deep.parameters()}], lr=8e-3)
phases = [(None, 50), (torch.amp.GradScaler("cpu", init_scale=1024.0), 100)]
for scaler, steps in phases:
    go = step_with(scaler)
    for _ in range(steps):
        pick = torch.randint(0, len(ad), (256,))
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
            out = model(ad[pick], context[pick])
        go((out.float() - score[pick]).pow(2).mean())

with torch.no_grad():
    print("RESULT", float((model(adv, contextv) - scorev).pow(2).mean()))
