"""Tags tokens of sentences of very different lengths with accumulated micro-batches."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(239)

WORDS, TAGS = 60, 5


class Corpus:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        truth = torch.Generator().manual_seed(0)
        kind = torch.randint(0, TAGS, (WORDS,), generator=truth)
        self.sentences = []
        for _ in range(n):
            size = int(torch.randint(2, 41, (1,), generator=g))
            words = torch.randint(0, WORDS, (size,), generator=g)
            before = torch.cat([kind.new_zeros(1), kind[words[:-1]]])
            tags = (kind[words] + (before == 2).long()) % TAGS
            slip = torch.rand(size, generator=g) < 0.03
            tags = torch.where(slip, torch.randint(0, TAGS, (size,), generator=g), tags)
            self.sentences.append((words, tags))

    def micro_batches(self, tokens, gen):
        """Sorted by length and cut by a token budget: few long or many short sentences."""
        order = sorted(range(len(self.sentences)), key=lambda i: len(self.sentences[i][0]))
        groups, group, room = [], [], tokens
        for i in order:
            size = len(self.sentences[i][0])
            if size > room and group:
                groups.append(group)
                group, room = [], tokens
            group.append(i)
            room -= size
        groups.append(group)
        for k in torch.randperm(len(groups), generator=gen).tolist():
            rows = [self.sentences[i] for i in groups[k]]
            pad = nn.utils.rnn.pad_sequence
            yield (pad([w for w, _ in rows], batch_first=True),
                   pad([t for _, t in rows], batch_first=True, padding_value=-100))


class Tagger(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.conv = nn.Conv1d(dim, 48, 3, padding=1)
        self.out = nn.Linear(48, TAGS)

    def forward(self, words):
        h = F.relu(self.conv(self.embed(words).transpose(1, 2)))
        return self.out(h.transpose(1, 2))


def summed(model, words, tags):
    return F.cross_entropy(model(words).flatten(0, 1), tags.flatten(),
                           ignore_index=-100, reduction="sum")


def step(model, opt, parts):
    count = sum((tags != -100).sum() for _, tags in parts)
    opt.zero_grad()
    total = 0.0
    for words, tags in parts:
        loss = summed(model, words, tags) / count
        loss.backward()
        total += loss.item()
    opt.step()
    return total


def evaluate(model, corpus, gen):
    with torch.no_grad():
        parts = list(corpus.micro_batches(400, gen))
        total = sum(summed(model, w, t).item() for w, t in parts)
    return total / sum((t != -100).sum().item() for _, t in parts)


gen = torch.Generator().manual_seed(9)
train, val = Corpus(500, 1), Corpus(120, 2)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=6e-3)
for epoch in range(8):
    waiting = []
    for part in train.micro_batches(150, gen):
        waiting.append(part)
        if len(waiting) == 3:
            loss = step(model, opt, waiting)
            waiting = []
    if waiting:
        loss = step(model, opt, waiting)
    print(f"epoch {epoch} loss {loss:.4f} val {evaluate(model, val, gen):.4f}")
print("RESULT", evaluate(model, val, gen))
