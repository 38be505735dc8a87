"""Rare words need big steps, the recurrent part small ones."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, CLASSES, LEN = 400, 4, 10
gen = torch.Generator().manual_seed(1)
topic = torch.randint(0, CLASSES, (WORDS,), generator=gen)


def texts(n):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    own = torch.rand(n, LEN, generator=gen) < 0.55
    words = torch.randint(0, WORDS, (n, LEN), generator=gen)
    pools = torch.stack([(topic == c).nonzero().flatten()[:80] for c in range(CLASSES)])
    mine = pools[y][:, torch.randint(0, pools.shape[1], (LEN,), generator=gen)]
    return torch.where(own, mine, words), y


class Reader(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.words = nn.Embedding(WORDS, d)
        nn.init.normal_(self.words.weight, std=0.02)
        self.rnn = nn.GRU(d, 32, batch_first=True)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x):
        return self.out(self.rnn(self.words(x))[0].mean(1))


def make_optimizer(model, steps):
    rest = [p for n, p in model.named_parameters() if not n.startswith("words")]
    groups = [{"params": model.words.parameters(), "lr": 6e-2}, {"params": rest, "lr": 2e-3}]
    opt = torch.optim.Adam(groups)
    return opt, torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=steps)


STEPS = 120
model = Reader()
opt, sched = make_optimizer(model, STEPS)
for step in range(STEPS):
    x, y = texts(32)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(step, loss.item())

model.eval()
x, y = texts(500)
with torch.no_grad():
    print("RESULT", float(F.cross_entropy(model(x), y)))
