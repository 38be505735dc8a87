"""Sequence labelling with accelerate, normalised by all tokens of an accumulated batch."""
import torch

torch.set_num_threads(1)
torch.manual_seed(37)

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

VOCAB, TAGS, PAD = 40, 4, -100
ACCUMULATION = 4


def sentences(n, seed):
    """The tag follows from the token and the parity of its left neighbour."""
    table = torch.randint(0, TAGS, (VOCAB, 2), generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        length = int(torch.randint(3, 30, (1,), generator=g))
        ids = torch.randint(1, VOCAB, (length,), generator=g)
        left = torch.cat([ids[:1], ids[:-1]])
        rows.append((ids, table[ids, left % 2]))
    return rows


def collate(rows):
    ids = nn.utils.rnn.pad_sequence([r[0] for r in rows], batch_first=True)
    tags = nn.utils.rnn.pad_sequence([r[1] for r in rows], batch_first=True, padding_value=PAD)
    return ids, tags


class Tagger(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=0)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, TAGS)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def groups(loader, size):
    """Lists of up to `size` batches, so that their tokens can be counted in advance."""
    held = []
    for batch in loader:
        held.append(batch)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def summed(logits, tags):
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), tags.flatten(), ignore_index=PAD, reduction="sum"
    )


def main():
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION, cpu=True)
    loader = DataLoader(sentences(1300, 1), batch_size=8, shuffle=True, collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.015)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(4):
        lr = 0.015 * (1 - epoch / 4)
        for group in optimizer.param_groups:
            group["lr"] = lr
        seen, total = 0, 0.0
        for batches in groups(loader, ACCUMULATION):
            tokens = sum((tags != PAD).sum() for _, tags in batches)
            for k, (ids, tags) in enumerate(batches):
                last = k == len(batches) - 1
                with accelerator.no_sync(model) if not last else torch.enable_grad():
                    loss = summed(model(ids), tags) * ACCUMULATION / tokens
                    accelerator.backward(loss)
                total += loss.item() / ACCUMULATION
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            seen += 1
        accelerator.print(f"epoch {epoch} loss per token {total / seen:.4f} lr {lr:.4f}")

    ids, tags = collate(sentences(300, 2))
    with torch.no_grad():
        loss = summed(model(ids), tags) / (tags != PAD).sum()
    print(f"RESULT {loss.item():.4f}")


if __name__ == "__main__":
    main()
