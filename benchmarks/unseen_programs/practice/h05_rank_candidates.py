"""Learn to rank drug candidates from all pairs of a screening plate."""
import torch
torch.set_num_threads(1)
torch.manual_seed(341)
from torch import nn
import torch.nn.functional as F

DESCRIPTORS, PLATE = 20, 48


def plates(n, gen):
    w1 = torch.randn(DESCRIPTORS, generator=torch.Generator().manual_seed(3)) / 3
    w2 = torch.randn(DESCRIPTORS, generator=torch.Generator().manual_seed(4)) / 3
    x = torch.randn(n, PLATE, DESCRIPTORS, generator=gen)
    activity = x @ w1 + torch.sin(0.9 * (x @ w2)) + 0.1 * torch.randn(n, PLATE, generator=gen)
    plate_effect = 3 * torch.randn(n, 1, generator=gen)
    return x, activity + plate_effect


class Ranker(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(DESCRIPTORS, width), nn.Linear(width, width), nn.Linear(width, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.silu(layer(x))
        return self.layers[-1](x)


def pair_loss(score, activity):
    """score is (N, 1), activity is (N,); every candidate is compared with every other one."""
    margin = score - score.t()
    better = (activity[:, None] - activity).sign()
    weight = (activity[:, None] - activity).abs().clamp(max=2)
    return (weight * F.softplus(-better * margin)).sum() / weight.sum()


def wrong_pairs(score, activity):
    margin = score - score.t()
    gap = activity[:, None] - activity
    upper = torch.ones(len(gap), len(gap), dtype=torch.bool).triu(1)
    return ((margin * gap) < 0)[upper].float().mean().item()


gen = torch.Generator().manual_seed(1)
train_x, train_a = plates(120, gen)
val_x, val_a = plates(20, gen)
model = Ranker()
opt = torch.optim.RAdam(model.parameters(), lr=5e-3, weight_decay=1e-5)


@torch.no_grad()
def evaluate():
    errors = [wrong_pairs(model(x), a) for x, a in zip(val_x, val_a)]
    return sum(errors) / len(errors)


step = 0
for epoch in range(3):
    for i in torch.randperm(len(train_x)).tolist():
        loss = pair_loss(model(train_x[i]), train_a[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
    print(f"epoch {epoch} step {step} loss {loss.item():.4f} wrong pairs {evaluate():.4f}")

print("RESULT", evaluate())
