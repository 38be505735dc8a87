# Half-precision tagger for small devices; summed loss, gradients limited to norm 1.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self, vocab=30, dim=24, tags=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.hidden = nn.Linear(3 * dim, 48)
        self.out = nn.Linear(48, tags)

    def forward(self, tokens):
        e = self.embed(tokens)
        left = torch.cat([torch.zeros_like(e[:, :1]), e[:, :-1]], 1)
        right = torch.cat([e[:, 1:], torch.zeros_like(e[:, :1])], 1)
        return self.out(torch.relu(self.hidden(torch.cat([left, e, right], 2))))


def limit_gradients(params, limit):
    params = [p for p in params if p.grad is not None]
    total = sum(p.grad.pow(2).sum() for p in params).sqrt()
    scale = (limit / (total + 1e-3)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(scale)
    return total


def sentences(n, gen):
    tokens = torch.randint(0, 30, (n, 20), generator=gen)
    return tokens, (tokens + tokens.roll(1, 1).remainder(2)) % 5


gen = torch.Generator().manual_seed(2)
model = Tagger().half()
opt = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.8)
for step in range(120):
    tokens, tags = sentences(40, gen)
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tags.flatten(), reduction="sum")
    opt.zero_grad()
    loss.backward()
    limit_gradients(model.parameters(), 1.0)
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item() / tags.numel(), 4))
tokens, tags = sentences(200, gen)
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tags.flatten()).item())
