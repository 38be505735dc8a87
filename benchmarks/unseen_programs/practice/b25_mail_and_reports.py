"""Tag words of short mails and long reports for personal names, accumulating gradients."""
import torch
torch.set_num_threads(1)
torch.manual_seed(210)
from torch import nn
import torch.nn.functional as F

VOCAB, TAGS, PAD = 60, 3, -1
MICRO = 4


def tag_rule(words, shift):
    return (words + torch.roll(words, 1) + shift) // 7 % TAGS


class Corpus:
    """Mails have a handful of words and sloppy labels; reports are long and careful."""

    def __init__(self, n_mail, n_report, gen):
        self.docs = []
        for _ in range(n_mail):
            w = torch.randint(VOCAB, (int(torch.randint(2, 5, (1,), generator=gen)),),
                              generator=gen)
            t = tag_rule(w, 3)
            noise = torch.rand(len(w), generator=gen) < 0.3
            t = torch.where(noise, torch.randint(TAGS, t.shape, generator=gen), t)
            self.docs.append((w, t))
        self.n_mail = n_mail
        for _ in range(n_report):
            w = torch.randint(VOCAB, (int(torch.randint(50, 80, (1,), generator=gen)),),
                              generator=gen)
            self.docs.append((w, tag_rule(w, 0)))

    def micro_batches(self, size, gen):
        """Endless stream of micro-batches, each from one kind of document."""
        kinds = [range(self.n_mail), range(self.n_mail, len(self.docs))]
        while True:
            for kind in (0, 1, 0, 0):
                rows = torch.randint(len(kinds[kind]), (size,), generator=gen).tolist()
                yield pad([self.docs[kinds[kind][r]] for r in rows])


def pad(docs):
    longest = max(len(w) for w, _ in docs)
    words = torch.zeros(len(docs), longest, dtype=torch.long)
    tags = torch.full((len(docs), longest), PAD)
    for i, (w, t) in enumerate(docs):
        words[i, :len(w)] = w
        tags[i, :len(t)] = t
    return words, tags


class Tagger(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.mix = nn.Conv1d(dim, 64, 2)
        self.head = nn.Linear(64, TAGS)

    def forward(self, words):
        e = F.pad(self.embed(words).transpose(1, 2), (1, 0))
        return self.head(torch.relu(self.mix(e)).transpose(1, 2))


def token_loss(model, words, tags, reduction):
    logits = model(words).flatten(0, 1)
    return F.cross_entropy(logits, tags.flatten(), ignore_index=PAD, reduction=reduction)


def token_error(model, corpus):
    total = n = 0
    with torch.no_grad():
        for i in range(0, len(corpus.docs), 50):
            words, tags = pad(corpus.docs[i:i + 50])
            total += token_loss(model, words, tags, "sum").item()
            n += (tags != PAD).sum().item()
    return total / n


gen = torch.Generator().manual_seed(1)
train, val = Corpus(600, 200, gen), Corpus(150, 50, gen)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=6e-3)
stream = train.micro_batches(16, gen)
for step in range(200):
    opt.zero_grad()
    micro = [next(stream) for _ in range(MICRO)]
    for words, tags in micro:
        loss = token_loss(model, words, tags, "mean") / MICRO
        loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"step {step} val {token_error(model, val):.4f}")
print("RESULT", token_error(model, val))
