"""Delivery cost of a set of parcels: masked pools over sets of different sizes, in bf16."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(47)

MOST, FEATURES = 9, 3


def deliveries(n, gen):
    """Up to nine parcels with weight, distance and urgency; the cost mixes extremes and means."""
    count = torch.randint(1, MOST + 1, (n,), generator=gen)
    valid = torch.arange(MOST)[None] < count[:, None]
    x = torch.rand(n, MOST, FEATURES, generator=gen)
    weight, far, urgent = x.unbind(-1)
    w = valid.float()
    farthest = far.masked_fill(~valid, float("-inf")).amax(1)
    nearest = far.masked_fill(~valid, float("inf")).amin(1)
    cost = 2 * farthest - nearest + (weight * w).sum(1) / 3
    cost = cost + ((urgent > 0.8).float() * w * far).amax(1)
    return x * w[..., None], valid, cost + 0.03 * torch.randn(n, generator=gen)


class ParcelNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.each = nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.attend = nn.Linear(width, 1)
        self.out = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x, valid):
        h = self.each(x)
        hidden = ~valid[..., None]
        # Features are not negative, so zero is a neutral fill for the maximum and the sum.
        top = h.masked_fill(hidden, 0.0).amax(1)
        total = h.masked_fill(hidden, 0.0).sum(1) / MOST
        # There is at least one parcel in each row, so the minimum is finite.
        low = h.masked_fill(hidden, float("inf")).amin(1)
        weight = self.attend(h).masked_fill(hidden, float("-inf")).softmax(1)
        focus = (weight * h).sum(1)
        return self.out(torch.cat([top, total, low, focus], 1)).squeeze(1)


def main():
    gen = torch.Generator().manual_seed(470)
    x, valid, cost = deliveries(4000, gen)
    v_x, v_valid, v_cost = deliveries(600, gen)
    model = ParcelNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 350, eta_min=1e-5)

    def validate():
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            pred = model(v_x, v_valid)
        return F.mse_loss(pred.float(), v_cost).item()

    for step in range(350):
        pick = torch.randint(0, len(x), (64,), generator=gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = model(x[pick], valid[pick])
        loss = F.mse_loss(pred.float(), cost[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 70 == 0:
            print(f"step {step} loss {loss.item():.4f} val {validate():.4f}")
    print(f"variance {v_cost.var().item():.4f}")
    print(f"RESULT {validate():.5f}")


if __name__ == "__main__":
    main()
