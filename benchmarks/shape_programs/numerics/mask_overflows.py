"""Topic of a short text: words are pooled by learned importance, in 16 bits throughout."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(27)
torch.set_num_threads(1)
WORDS, TOPICS, LENGTH = 120, 4, 12


def texts(n):
    topic = torch.randint(0, TOPICS, (n,))
    own = topic[:, None] * 30 + torch.randint(0, 30, (n, LENGTH))
    word = torch.where(torch.rand(n, LENGTH) < 0.35, own, torch.randint(0, WORDS, (n, LENGTH)))
    here = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (n, 1))
    return word, here, topic


class Pooled(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.importance = nn.Linear(dim, 1)
        self.out = nn.Linear(dim, TOPICS)
        self.register_buffer("absent", torch.tensor(-1e6))

    def forward(self, word, here):
        e = self.embed(word)
        score = self.importance(torch.tanh(e)).squeeze(-1)
        score = score + self.absent * (1 - here.to(score.dtype))
        return self.out((score.softmax(-1).unsqueeze(-1) * e).sum(1))


net = Pooled().half()
master = [p.detach().float().requires_grad_() for p in net.parameters()]
opt = torch.optim.Adam(master, lr=2e-2)
for step in range(120):
    word, here, topic = texts(64)
    loss = F.cross_entropy(net(word, here).float(), topic)
    for p, m, g in zip(net.parameters(), master, torch.autograd.grad(loss * 128, list(net.parameters()))):
        m.grad = g.float() / 128
    opt.step()
    with torch.no_grad():
        for p, m in zip(net.parameters(), master):
            p.copy_(m)
    if step % 40 == 0:
        print(step, loss.item())
word, here, topic = texts(600)
with torch.no_grad():
    print("RESULT", F.cross_entropy(net(word, here).float(), topic).item())
