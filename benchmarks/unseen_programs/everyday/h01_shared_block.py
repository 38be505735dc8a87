"""Train a recurrent-depth transformer that applies one block several times to sort digits."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(101)

DIGITS, LENGTH, WIDTH, ROUNDS = 10, 6, 48, 4


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(),
                                 nn.Linear(2 * width, width))
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, h):
        z = self.n1(h)
        h = h + self.attn(z, z, z, need_weights=False)[0]
        return h + self.mlp(self.n2(h))


class SharedDepthSorter(nn.Module):
    """Weights are shared across depth, as in ALBERT; a round embedding tells the rounds apart.

    The output projection is tied to the digit embedding.
    """

    def __init__(self):
        super().__init__()
        self.digit = nn.Embedding(DIGITS, WIDTH)
        nn.init.normal_(self.digit.weight, std=0.3)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.round = nn.Parameter(torch.zeros(ROUNDS, WIDTH))
        block = Block(WIDTH)
        self.blocks = nn.ModuleList([block] * ROUNDS)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, DIGITS, bias=False)
        self.out.weight = self.digit.weight

    def forward(self, x):
        h = self.digit(x) + self.place
        for r, block in enumerate(self.blocks):
            h = block(h + self.round[r])
        return self.out(self.norm(h))


def batch(n):
    x = torch.randint(0, DIGITS, (n, LENGTH))
    return x, x.sort(dim=1).values


def main():
    model = SharedDepthSorter()
    unique = {id(p): p for p in model.parameters()}
    print(f"{sum(p.numel() for p in unique.values())} weights for {ROUNDS} rounds")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    steps = 220
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    val_x, val_y = batch(500)
    for step in range(1, steps + 1):
        x, y = batch(64)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 55 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        print(f"RESULT {F.cross_entropy(model(val_x).flatten(0, 1), val_y.flatten()):.5f}")


if __name__ == "__main__":
    main()
