"""Learn to imitate the moves of a card player from the hand held and the table state."""
import torch
torch.set_num_threads(1)
torch.manual_seed(8)
import copy
from torch import nn

CARDS, TABLE, HAND = 40, 16, 9


def games(n, seed):
    g = torch.Generator().manual_seed(99)
    rule = torch.randn(TABLE, CARDS, generator=g)
    g = torch.Generator().manual_seed(seed)
    table = torch.randn(n, TABLE, generator=g)
    held = torch.zeros(n, CARDS, dtype=torch.bool)
    picks = torch.rand(n, CARDS, generator=g).topk(HAND, 1).indices
    held.scatter_(1, picks, True)
    value = table @ rule + 0.7 * torch.randn(n, CARDS, generator=g)
    played = value.masked_fill(~held, float("-inf")).argmax(1)
    return table, held, played


class Policy(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(TABLE + CARDS, width), nn.ReLU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CARDS))

    def forward(self, table, held):
        scores = self.trunk(torch.cat([table, held.float()], 1))
        return scores.masked_fill(~held, float("-inf"))


class SmoothedNLL(nn.Module):
    def __init__(self, smoothing=0.05):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, scores, played, held):
        logp = torch.log_softmax(scores, dim=1)
        hit = -logp.gather(1, played[:, None]).squeeze(1)
        rest = -logp.mean(1)
        return ((1 - self.smoothing) * hit + self.smoothing * rest).mean()


def batches(data, size):
    order = torch.randperm(len(data[0]))
    for rows in order.split(size):
        yield tuple(t[rows] for t in data)


train, val, test = games(12000, 1), games(2000, 2), games(2000, 3)
policy = Policy()
criterion = SmoothedNLL()
opt = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=0.01)
best, best_state = float("inf"), copy.deepcopy(policy.state_dict())

for epoch in range(8):
    policy.train()
    for table, held, played in batches(train, 256):
        loss = criterion(policy(table, held), played, held)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    policy.eval()
    with torch.no_grad():
        val_loss = criterion(policy(val[0], val[1]), val[2], val[1]).item()
    if val_loss < best:
        best, best_state = val_loss, copy.deepcopy(policy.state_dict())
    print(f"epoch {epoch} train {loss.item():.4f} val {val_loss:.4f}")

policy.load_state_dict(best_state)
with torch.no_grad():
    wrong = (policy(test[0], test[1]).argmax(1) != test[2]).float().mean().item()
print("RESULT", wrong)
