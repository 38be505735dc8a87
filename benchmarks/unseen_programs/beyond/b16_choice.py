"""Trains a model of choices, which scores items and gives each a share of the attention."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(37)

ITEMS, FEATURES = 8, 12
taste = torch.randn(FEATURES) * 0.8
pairs = torch.randn(FEATURES, FEATURES) * 0.15


def choices(n, gen):
    """People see eight items and choose one, the better ones more often."""
    items = torch.randn(n, ITEMS, FEATURES, generator=gen)
    items[:, 0] += 0.4
    utility = items @ taste + torch.einsum("nif,fg,nig->ni", items, pairs, items)
    gumbel = -torch.log(-torch.log(torch.rand(n, ITEMS, generator=gen)))
    return items, (utility + gumbel).argmax(dim=1)


class ChoiceModel(nn.Module):
    def __init__(self, width=64, available=None):
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(FEATURES, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1))

    def forward(self, items):
        score = self.score(items).squeeze(-1)
        score = score - score.detach().max(dim=1, keepdim=True).values
        share = score.exp()
        share.data.div_(share.data.sum(dim=1, keepdim=True))
        return share


def surprise(share, chosen):
    picked = share.gather(1, chosen[:, None]).squeeze(1)
    return -(picked + 1e-12).log().mean()


@torch.no_grad()
def evaluate(model, items, chosen):
    model.eval()
    share = model(items)
    model.train()
    return surprise(share, chosen).item(), (share.argmax(dim=1) == chosen).float().mean().item()


gen = torch.Generator().manual_seed(5)
train_items, train_chosen = choices(6000, gen)
val_items, val_chosen = choices(1500, gen)
model = ChoiceModel()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.3)
for epoch in range(6):
    for chunk in torch.randperm(len(train_items)).split(128):
        loss = surprise(model(train_items[chunk]), train_chosen[chunk])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    schedule.step()
    val, hits = evaluate(model, val_items, val_chosen)
    print(f"epoch {epoch} loss {loss.item():.4f} val {val:.4f} hits {hits:.3f}")
print("RESULT", round(val, 4))
