"""Count coloured objects in sets with slots that compete for the elements."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(105)

MAX_ITEMS, FEATURES, SLOTS, DIM, COLOURS = 12, 6, 4, 32, 4


def scenes(n):
    """Sets of up to twelve items, some of them empty; targets are counts per colour."""
    count = torch.randint(0, MAX_ITEMS + 1, (n,))
    colour = torch.randint(0, COLOURS, (n, MAX_ITEMS))
    g = torch.Generator().manual_seed(9)
    centre = torch.randn(COLOURS, FEATURES, generator=g) * 1.5
    items = centre[colour] + 0.4 * torch.randn(n, MAX_ITEMS, FEATURES)
    present = torch.arange(MAX_ITEMS) < count[:, None]
    target = (F.one_hot(colour, COLOURS) * present.unsqueeze(-1)).sum(1).float()
    return items * present.unsqueeze(-1), present, target


class SlotAttention(nn.Module):
    def __init__(self, rounds=2):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(SLOTS, DIM))
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.norm = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, DIM))
        self.rounds = rounds

    def forward(self, h, present):
        slots = self.slots.expand(len(h), -1, -1)
        k, v = self.k(h), self.v(h)
        for _ in range(self.rounds):
            logits = k @ self.q(self.norm(slots)).transpose(1, 2) / DIM ** 0.5
            # the softmax runs over the slots, so that these compete for each item
            share = torch.softmax(logits, dim=-1) * present.unsqueeze(-1)
            slots = slots + share.transpose(1, 2) @ v
            slots = slots + self.mlp(self.norm(slots))
        return slots


class ItemMixer(nn.Module):
    """Attention between the items; rows without any item get a zero instead of a NaN."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, h, present):
        q, k, v = self.qkv(h).chunk(3, dim=-1)
        score = q @ k.transpose(1, 2) / DIM ** 0.5
        mask = present.unsqueeze(1)
        score = score.masked_fill(~mask, float("-inf"))
        empty = ~present.any(1)[:, None, None]
        weight = torch.softmax(score.masked_fill(empty, 0.0), dim=-1) * mask
        return h + weight @ v


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(FEATURES, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.mixer = ItemMixer()
        self.slots = SlotAttention()
        self.out = nn.Linear(SLOTS * DIM, COLOURS)

    def forward(self, items, present):
        h = self.mixer(self.embed(items), present)
        return self.out(self.slots(h, present).flatten(1))


def main():
    train, val = scenes(4000), scenes(800)
    model = Counter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = 300
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(1, steps + 1):
        idx = torch.randint(0, 4000, (96,))
        items, present, target = (column[idx] for column in train)
        loss = F.smooth_l1_loss(model(items, present), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 75 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        error = (model(val[0], val[1]) - val[2]).abs().mean().item()
    print(f"RESULT {error:.5f}")


if __name__ == "__main__":
    main()
