import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)
TOPICS, WORDS, LENGTH = 8, 200, 16


def sentences(n, g):
    topic = torch.randint(TOPICS, (n,), generator=g)
    own = topic[:, None] * 20 + torch.randint(20, (n, LENGTH), generator=g)
    other = torch.randint(WORDS, (n, LENGTH), generator=g)
    return torch.where(torch.rand(n, LENGTH, generator=g) < 0.6, own, other), topic


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.noise = nn.Dropout(0.2)
        self.out = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32))

    def forward(self, tokens):
        return F.normalize(self.out(self.noise(self.words(tokens)).mean(1)), dim=1)


g = torch.Generator().manual_seed(2)
train, _ = sentences(1024, g)
test, topic = sentences(300, g)
net = Encoder()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)


def neighbours():
    net.eval()
    with torch.no_grad():
        z = net(test)
    net.train()
    near = (z @ z.T).fill_diagonal_(-2).argmax(1)
    return (topic[near] != topic).float().mean().item()


for epoch in range(6):
    for index in torch.randperm(len(train)).split(64):
        tokens = train[index]
        # dropout gives two views of each sentence (SimCSE)
        first, second = net(tokens), net(tokens)
        loss = F.cross_entropy(first @ second.T / 0.1, torch.arange(len(index)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f} error {neighbours():.3f}")
print("RESULT", neighbours())
