# Denoising of symbol sequences: random symbols are blanked out and have to be filled in.
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, LENGTH, BLANK = 12, 16, 12


class Filler(nn.Module):
    def __init__(self, dim=48, rate=0.3, seed=5):
        super().__init__()
        self.embed = nn.Embedding(VOCAB + 1, dim)
        self.mix = nn.Conv1d(dim, dim, 5, padding=2)
        self.mix2 = nn.Conv1d(dim, dim, 5, padding=2)
        self.out = nn.Linear(dim, VOCAB)
        self.rate = rate
        self.noise = torch.Generator().manual_seed(seed)

    def corrupt(self, tokens):
        blank = torch.rand(tokens.shape, generator=self.noise) < self.rate
        return tokens.masked_fill(blank, BLANK), blank

    def body(self, tokens):
        seen, blank = self.corrupt(tokens)
        h = self.embed(seen).transpose(1, 2)
        h = h + torch.relu(self.mix(h))
        h = h + torch.relu(self.mix2(h))
        return self.out(h.transpose(1, 2)), blank

    def forward(self, tokens):
        if self.training:
            return checkpoint(self.body, tokens, use_reentrant=False)
        return self.body(tokens)


def songs(n, gen):
    start = torch.randint(0, VOCAB, (n, 1), generator=gen)
    stride = torch.randint(1, 4, (n, 1), generator=gen)
    return (start + stride * torch.arange(LENGTH)) % VOCAB


def fill_loss(model, tokens):
    logits, blank = model(tokens)
    each = nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    return (each * blank).sum() / blank.sum().clamp(min=1)


gen = torch.Generator().manual_seed(1)
model = Filler()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
for step in range(100):
    loss = fill_loss(model, songs(32, gen))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(step, round(loss.item(), 4))
model.eval()
with torch.no_grad():
    print("RESULT", fill_loss(model, songs(300, gen)).item())
