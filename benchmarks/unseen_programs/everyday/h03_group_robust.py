"""Train a classifier for its worst hospital with weights of groups that ascend the loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(103)

HOSPITALS, FIELDS = 4, 12


def patients(n):
    g = torch.Generator().manual_seed(31)
    common = torch.randn(FIELDS, generator=g)
    own = torch.randn(HOSPITALS, FIELDS, generator=g)
    hospital = torch.multinomial(torch.tensor([0.6, 0.25, 0.1, 0.05]), n, replacement=True)
    x = torch.randn(n, FIELDS)
    logit = x @ common + 0.9 * (x * own[hospital]).sum(1)
    y = (torch.rand(n) < torch.sigmoid(2 * logit)).float()
    return torch.cat([x, F.one_hot(hospital, HOSPITALS).float()], 1), y, hospital


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FIELDS + HOSPITALS, width), nn.SiLU(),
                                 nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def group_means(loss, hospital):
    total = torch.zeros(HOSPITALS).index_add(0, hospital, loss)
    count = torch.zeros(HOSPITALS).index_add(0, hospital, torch.ones_like(loss))
    return total / count.clamp_min(1)


def worst_group(model, x, y, hospital):
    with torch.no_grad():
        loss = F.binary_cross_entropy_with_logits(model(x), y, reduction="none")
        return group_means(loss, hospital).max().item()


def main():
    x, y, hospital = patients(4000)
    val = patients(1500)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    # the adversary moves uphill on the same loss
    adversary = nn.Parameter(torch.zeros(HOSPITALS))
    optimizer_adv = torch.optim.SGD([adversary], lr=0.05, maximize=True)
    steps = 300
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(x), (128,))
        loss = F.binary_cross_entropy_with_logits(model(x[idx]), y[idx], reduction="none")
        weights = torch.softmax(adversary, dim=0)
        robust = (weights * group_means(loss, hospital[idx])).sum()
        optimizer.zero_grad()
        optimizer_adv.zero_grad()
        robust.backward()
        optimizer.step()
        optimizer_adv.step()
        with torch.no_grad():
            adversary.clamp_(-2, 2)
        scheduler.step()
        if step % 60 == 0:
            shares = ", ".join(f"{w:.2f}" for w in weights.tolist())
            print(f"step {step} robust {robust.item():.4f} weights {shares} "
                  f"worst {worst_group(model, *val):.4f}")
    print(f"RESULT {worst_group(model, *val):.5f}")


if __name__ == "__main__":
    main()
