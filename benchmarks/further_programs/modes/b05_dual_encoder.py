import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(8)


class DualEncoder(nn.Module):
    """Scores (query, document) pairs given as bags of words."""

    def __init__(self, vocab=200, dim=32):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.encoder = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.project_q = nn.Linear(dim, dim)
        self.project_d = nn.Linear(dim, dim)

    @torch.no_grad()
    def encode(self, bags):
        return self.encoder(self.words(bags))

    def forward(self, queries, docs):
        q = self.project_q(self.encode(queries))
        d = self.project_d(self.encode(docs))
        return F.normalize(q, dim=-1) @ F.normalize(d, dim=-1).T / 0.1


class Corpus:
    """20 topics; queries and documents of a topic use different halves of its words."""

    def __init__(self, gen):
        self.gen = gen
        self.topic_words = torch.randperm(200, generator=gen).view(20, 10)

    def draw(self, topics, side, length=4):
        noise = torch.randint(200, (len(topics), length), generator=self.gen)
        pick = torch.randint(5, (len(topics), length), generator=self.gen) + 5 * side
        clean = self.topic_words[topics].gather(1, pick)
        keep = torch.rand(len(topics), length, generator=self.gen) < 0.8
        return torch.where(keep, clean, noise)

    def pairs(self):
        topics = torch.randperm(20, generator=self.gen)
        return self.draw(topics, 0), self.draw(topics, 1)


def info_nce(scores):
    target = torch.arange(len(scores))
    return 0.5 * (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target))


corpus = Corpus(torch.Generator().manual_seed(4))
model = DualEncoder()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(500):
    loss = info_nce(model(*corpus.pairs()))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, loss.item())

model.eval()
with torch.no_grad():
    print("RESULT", sum(info_nce(model(*corpus.pairs())).item() for _ in range(30)) / 30)
