"""Classifies short reviews by tone with a bag of token embeddings."""
import random

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(61)

WORDS = ["good", "bad", "fine", "slow", "fast", "late", "warm", "cold", "kind", "rude",
         "food", "room", "staff", "place", "price", "not", "very", "the", "was", "and"]
TONE = {"good": 1, "bad": -1, "fine": 0.5, "slow": -0.6, "fast": 0.6, "late": -0.8,
        "warm": 0.5, "cold": -0.5, "kind": 0.9, "rude": -1.1}


def write_review(rng):
    words = [rng.choice(WORDS) for _ in range(rng.randint(6, 14))]
    total, sign = 0.0, 1.0
    for w in words:
        if w == "not":
            sign = -1.0
            continue
        total += sign * TONE.get(w, 0.0)
        if w in TONE:
            sign = 1.0
    total += rng.gauss(0, 0.2)
    return " ".join(words), int(total > 0)


class Vocabulary:
    def __init__(self, words):
        pairs = [f"not_{w}" for w in words]
        self.index = {w: i for i, w in enumerate(list(words) + pairs)}

    def __len__(self):
        return len(self.index)

    def encode(self, text):
        words = text.split()
        ids = [self.index[w] for w in words]
        ids += [self.index[f"not_{b}"] for a, b in zip(words, words[1:]) if a == "not"]
        return ids


def collate(vocab, rows):
    flat, offsets, labels = [], [], []
    for text, label in rows:
        offsets.append(len(flat))
        flat += vocab.encode(text)
        labels.append(float(label))
    return torch.tensor(flat), torch.tensor(offsets), torch.tensor(labels)


def chunks(rows, size):
    for i in range(0, len(rows), size):
        yield rows[i:i + size]


class ToneModel(nn.Module):
    def __init__(self, size, dim=16):
        super().__init__()
        self.bag = nn.EmbeddingBag(size, dim, mode="sum")
        self.out = nn.Linear(dim, 1)

    def forward(self, ids, offsets):
        return self.out(self.bag(ids, offsets)).squeeze(-1)


def evaluate(model, vocab, rows):
    with torch.no_grad():
        ids, offsets, labels = collate(vocab, rows)
        return nn.functional.binary_cross_entropy_with_logits(model(ids, offsets), labels).item()


rng = random.Random(7)
train_rows = [write_review(rng) for _ in range(1600)]
val_rows = [write_review(rng) for _ in range(400)]
vocab = Vocabulary(WORDS)
model = ToneModel(len(vocab))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
loss_fn = nn.BCEWithLogitsLoss()

train_batches = map(lambda rows: collate(vocab, rows), chunks(train_rows, 40))
for epoch in range(8):
    for ids, offsets, labels in train_batches:
        loss = loss_fn(model(ids, offsets), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} last loss {loss.item():.4f} "
          f"val {evaluate(model, vocab, val_rows):.4f}")

print("RESULT", evaluate(model, vocab, val_rows))
