"""Transformer that reads the marked token of a sequence."""
import math

import torch
from torch import nn

torch.set_num_threads(1)

VOCAB, LENGTH, WIDTH = 8, 10, 32


def sample(n, gen):
    tokens = torch.randint(0, VOCAB, (n, LENGTH), generator=gen)
    where = torch.randint(0, LENGTH, (n,), generator=gen)
    marks = torch.zeros(n, LENGTH, dtype=torch.long)
    marks[torch.arange(n), where] = 1
    return tokens, marks, tokens[torch.arange(n), where]


class PositionalEncoding(nn.Module):
    def __init__(self, width, max_len=64):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, width, 2) * (-math.log(100.0) / width))
        table = torch.zeros(max_len, width)
        table[:, 0::2] = torch.sin(pos * div)
        table[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(1)]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.mark = nn.Embedding(2, WIDTH)
        self.cls = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = PositionalEncoding(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=64, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens, marks):
        h = self.token(tokens) + self.mark(marks)
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], dim=1)
        h = self.encoder(self.position(h))
        return self.out(h[:, 0])


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        guess = model(data[0], data[1]).argmax(-1)
    model.train()
    return (guess == data[2]).float().mean().item()


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(17)
    held_out = sample(500, gen)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(1, 401):
        tokens, marks, target = sample(48, gen)
        loss = loss_fn(model(tokens, marks), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 80 == 0:
            print(f"step {step} loss {loss.item():.4f} accuracy {accuracy(model, held_out):.3f}")
    print("RESULT", 1 - accuracy(model, held_out))


if __name__ == "__main__":
    main()
