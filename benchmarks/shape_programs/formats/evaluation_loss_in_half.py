"""Sentiment of short reviews (bags of words) with early stopping on the validation loss."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, STARS = 200, 5
weight = torch.randn(WORDS, STARS)


def reviews(n, seed):
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (n, 12), generator=g)
    return words, weight[words].sum(1).argmax(1)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 64, mode="mean")
        self.head = nn.Linear(64, STARS)

    def forward(self, words):
        return self.head(torch.relu(self.words(words)))


def predictions(model, words, size=128):
    for part in words.split(size):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            yield model(part)


def validate(model, words, stars):
    model.eval()
    scores = torch.cat(list(predictions(model, words)))
    model.train()
    return F.cross_entropy(scores, stars).item()


class Patience:
    def __init__(self, limit):
        self.limit, self.best, self.bad = limit, float("inf"), 0

    def exhausted(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        return self.bad >= self.limit


model = Bag()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 60))
words, stars = reviews(1024, 1)
held_words, held_stars = reviews(512, 2)
patience = Patience(4)
for step in range(150):
    pick = torch.randint(0, len(words), (128,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(words[pick]), stars[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warmup.step()
    if patience.exhausted(validate(model, held_words, held_stars)):
        print("stopped after", step)
        break
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(held_words), held_stars).item())
