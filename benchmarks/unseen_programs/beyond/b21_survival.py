"""Trains a risk score of patients with the partial likelihood of Cox."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(61)


def patients(n, gen):
    """Features, times until an event or the end of the study, and whether it happened."""
    x = torch.randn(n, 10, generator=gen)
    risk = 0.9 * x[:, 0] - 0.7 * x[:, 1] + 0.6 * x[:, 2] * x[:, 3] + 0.5 * x[:, 4].abs()
    time = -torch.log(torch.rand(n, generator=gen)) / (0.1 * risk.exp())
    end = 2 + 20 * torch.rand(n, generator=gen)
    return x, torch.minimum(time, end), time <= end


class Risk(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(10, width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def partial_likelihood(score, time, event):
    """Negative log likelihood of the order of events, given those at risk at each of them."""
    order = time.argsort()
    score, event = score[order], event[order]
    at_risk = torch.logcumsumexp(score, dim=0)
    return -(score - at_risk)[event].mean()


def concordance(score, time, event):
    """The share of comparable pairs in which the patient with the higher score fails first."""
    first = event[:, None] & (time[:, None] < time[None, :])
    higher = (score[:, None] > score[None, :]).float()
    return (higher[first].sum() / first.sum()).item()


@torch.no_grad()
def validate(model, x, time, event):
    model.eval()
    c = concordance(model(x), time, event)
    model.train()
    return c


gen = torch.Generator().manual_seed(7)
x, time, event = patients(3000, gen)
val = patients(800, gen)
mean, std = x.mean(0), x.std(0)
x = (x - mean) / std
val = ((val[0] - mean) / std, val[1], val[2])
print(f"events {event.float().mean().item():.2f} median time {time.median().item():.2f}")

model = Risk()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
for epoch in range(12):
    for chunk in torch.randperm(len(x)).split(200):
        loss = partial_likelihood(model(x[chunk]), time[chunk], event[chunk])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
    if epoch % 3 == 2:
        print(f"epoch {epoch} loss {loss.item():.4f} concordance {validate(model, *val):.4f}")
print("RESULT", round(1 - validate(model, *val), 4))
