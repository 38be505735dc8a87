"""Trains a masked-item transformer for sequential recommendation on synthetic histories."""
import random
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(79)
random.seed(79)

MAX_LEN, MASK_PROB, ITEMS = 16, 0.25, 60


def histories(n_users):
    """Users walk through a catalogue with popular items and strong follow-up habits."""
    follow = {i: random.sample(range(ITEMS), 3) for i in range(ITEMS)}
    weights = [1.0 / (1 + i) for i in range(ITEMS)]
    users = []
    for _ in range(n_users):
        item, seq = random.choices(range(ITEMS), weights)[0], []
        for _ in range(random.randint(6, MAX_LEN + 2)):
            seq.append(f"item-{item}")
            roll = random.random()
            item = (random.choices(follow[item], [6, 3, 1])[0] if roll < 0.75
                    else random.choices(range(ITEMS), weights)[0])
        users.append(seq)
    return users


def densify_index(users):
    """Map item names to indices, the most frequent ones first."""
    counts = Counter(name for seq in users for name in seq)
    smap = {name: i for i, (name, _) in enumerate(counts.most_common())}
    return [[smap[name] for name in seq] for seq in users], smap


class BertTrainLoader:
    def __init__(self, sequences, num_items, batch_size):
        self.sequences, self.batch_size = sequences, batch_size
        self.num_items, self.mask_token = num_items, num_items + 1

    def getitem(self, seq):
        tokens, labels = [], []
        for s in seq:
            prob = random.random()
            if prob < MASK_PROB:
                prob /= MASK_PROB
                if prob < 0.8:
                    tokens.append(self.mask_token)
                elif prob < 0.9:
                    tokens.append(random.randint(1, self.num_items - 1))
                else:
                    tokens.append(s)
                labels.append(s)
            else:
                tokens.append(s)
                labels.append(0)
        return self.pad(tokens), self.pad(labels)

    @staticmethod
    def pad(row):
        row = row[-MAX_LEN:]
        return [0] * (MAX_LEN - len(row)) + row

    def __iter__(self):
        order = random.sample(range(len(self.sequences)), len(self.sequences))
        for start in range(0, len(order), self.batch_size):
            rows = [self.getitem(self.sequences[i]) for i in order[start:start + self.batch_size]]
            yield tuple(torch.tensor(col) for col in zip(*rows))

    def evaluation(self, sequences):
        tokens = [self.pad(seq[:-1] + [self.mask_token]) for seq in sequences]
        return torch.tensor(tokens), torch.tensor([seq[-1] for seq in sequences])


class BERT(nn.Module):
    def __init__(self, num_items, dim=48, heads=4, layers=2):
        super().__init__()
        self.token = nn.Embedding(num_items + 2, dim, padding_idx=0)
        self.position = nn.Embedding(MAX_LEN, dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.1, batch_first=True, norm_first=True)
            for _ in range(layers))
        self.out = nn.Linear(dim, num_items + 1)

    def forward(self, x):
        pad = x.eq(0)
        h = self.token(x) + self.position.weight
        for block in self.blocks:
            h = block(h, src_key_padding_mask=pad.masked_fill(pad.all(1, keepdim=True), False))
        return self.out(h)


@torch.no_grad()
def next_item_nll(model, tokens, answer):
    model.eval()
    loss = F.cross_entropy(model(tokens)[:, -1], answer).item()
    model.train()
    return loss


sequences, smap = densify_index(histories(1300))
train_seqs, val_seqs = sequences[:1000], sequences[1000:]
loader = BertTrainLoader(train_seqs, len(smap), batch_size=50)
model = BERT(len(smap))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.3)
criterion = nn.CrossEntropyLoss(ignore_index=0)
val_batch = loader.evaluation(val_seqs)
for epoch in range(1, 9):
    total = 0.0
    for seqs, labels in loader:
        logits = model(seqs)
        loss = criterion(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    nll = next_item_nll(model, *val_batch)
    print(f"Epoch {epoch}, loss {total / 20:.3f}, val nll {nll:.3f}")
print("RESULT", round(nll, 5))
