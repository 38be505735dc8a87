import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(23)

CHUNKS = 6
VOCAB = 12


def grammar(gen):
    """Each symbol is followed by one of three others, with known odds."""
    table = torch.full((VOCAB, VOCAB), 0.005)
    for row in table:
        row[torch.randperm(VOCAB, generator=gen)[:3]] = torch.tensor([0.6, 0.25, 0.1])
    return table / table.sum(1, keepdim=True)


def texts(n, table, gen):
    out = []
    for _ in range(n):
        length = int(torch.randint(4, 40, (1,), generator=gen))
        seq = [int(torch.randint(0, VOCAB, (1,), generator=gen))]
        draws = torch.rand(length, generator=gen)
        cums = table.cumsum(1)
        for u in draws:
            seq.append(min(int((cums[seq[-1]] < u).sum()), VOCAB - 1))
        out.append(torch.tensor(seq))
    return out


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 24)
        self.mix = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
        self.head = nn.Linear(24, VOCAB, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        h = self.emb(ids)
        return self.head(h + self.mix(h))


def total_loss(model, group):
    tokens = sum(len(s) - 1 for s in group)
    seq = nn.utils.rnn.pad_sequence(group, batch_first=True, padding_value=-1)
    logits = model(seq[:, :-1].clamp(min=0))
    with torch.autocast("cpu", enabled=False):
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), seq[:, 1:].flatten(), ignore_index=-1, reduction="sum")
    return loss, tokens


def train(model, data, epochs):
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(epochs):
        groups = [[data[i] for i in idx] for idx in torch.randperm(len(data)).split(4)]
        pending, losses, updates = 0, 0.0, 0
        for i, group in enumerate(groups, 1):
            with torch.autocast("cpu", torch.bfloat16):
                loss, tokens = total_loss(model, group)
            loss.backward()
            pending += tokens
            losses += loss.item()
            if i % CHUNKS == 0 or i == len(groups):
                for p in model.parameters():
                    p.grad /= pending
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad(set_to_none=False)
                pending, updates = 0, updates + 1
        print(f"epoch {epoch} summed loss {losses:.1f} updates {updates}")


def main():
    gen = torch.Generator().manual_seed(1)
    table = grammar(gen)
    data, held = texts(400, table, gen), texts(150, table, gen)
    model = Bigram()
    train(model, data, epochs=8)
    with torch.no_grad():
        loss, tokens = total_loss(model, held)
    print("RESULT", loss.item() / tokens)


main()
