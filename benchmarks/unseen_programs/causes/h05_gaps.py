"""Fill gaps in symbol sequences: the encoder reads both sides of each gap; the loss looks at the gaps only."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
SYMBOLS, LENGTH, DIM = 10, 16, 48
GAP = SYMBOLS


def sequences(n, gen):
    a = torch.randint(0, SYMBOLS, (n, 1), generator=gen)
    d = torch.randint(1, 4, (n, 1), generator=gen)
    return (a + d * torch.arange(LENGTH)) % SYMBOLS


def make_gaps(seq, gen):
    gaps = torch.rand(seq.shape, generator=gen) < 0.3
    return seq.masked_fill(gaps, GAP), gaps


class Filler(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS + 1, DIM)
        self.place = nn.Parameter(torch.randn(LENGTH, DIM) * 0.1)
        layer = nn.TransformerEncoderLayer(DIM, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.out = nn.Linear(DIM, SYMBOLS)

    def forward(self, tokens):
        h = self.norm(self.encoder(self.symbol(tokens) + self.place))
        return self.out(h)


def gap_loss(model, seq, gen):
    seen, gaps = make_gaps(seq, gen)
    target = seq.masked_fill(~gaps, -100)
    return F.cross_entropy(model(seen).flatten(0, 1), target.flatten(), ignore_index=-100)


def gap_error(model, seq, gen):
    seen, gaps = make_gaps(seq, gen)
    with torch.no_grad():
        guess = model(seen).argmax(-1)
    return (guess[gaps] != seq[gaps]).float().mean().item()


def main():
    torch.manual_seed(65)
    gen = torch.Generator().manual_seed(65)
    train, test = sequences(4000, gen), sequences(300, gen)
    model = Filler()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(700):
        idx = torch.randint(0, len(train), (48,), generator=gen)
        loss = gap_loss(model, train[idx], gen)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 140 == 0:
            print(step, round(loss.item(), 4))
    print("RESULT", gap_error(model, test, gen))


if __name__ == "__main__":
    main()
