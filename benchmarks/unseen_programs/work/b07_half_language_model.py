"""Character model with half-precision weights, a float32 master copy and a fixed loss scale."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)

CONTEXT = 6
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def make_text(n_words, gen):
    """Words of a small made-up language, joined by spaces."""
    syllables = ["ka", "to", "mi", "ren", "sol", "pe", "lu", "dra", "vin", "qu", "esh", "ono"]
    lexicon = []
    for _ in range(60):
        k = int(torch.randint(1, 4, (1,), generator=gen))
        parts = torch.randint(0, len(syllables), (k,), generator=gen).tolist()
        lexicon.append("".join(syllables[p] for p in parts))
    picks = (torch.rand(n_words, generator=gen) ** 2 * 60).long().tolist()
    text = " ".join(lexicon[p] for p in picks)
    return torch.tensor([LETTERS.index(c) for c in text])


class CharModel(nn.Module):
    def __init__(self, dim=16, width=80):
        super().__init__()
        self.emb = nn.Embedding(len(LETTERS), dim)
        self.hidden = nn.Linear(CONTEXT * dim, width)
        self.out = nn.Linear(width, len(LETTERS))

    def forward(self, ctx):
        h = torch.tanh(self.hidden(self.emb(ctx).flatten(1)))
        return self.out(h)


class MasterWeights:
    """Keeps float32 copies of half parameters and steps an optimizer on them."""

    def __init__(self, model, lr, loss_scale, max_norm):
        self.half = [p for p in model.parameters()]
        self.full = [p.detach().float().clone().requires_grad_() for p in self.half]
        self.opt = torch.optim.SGD(self.full, lr=lr, momentum=0.9)
        self.loss_scale, self.max_norm = loss_scale, max_norm

    def grad_norm(self):
        squares = [p.grad.pow(2).sum() for p in self.half]
        return torch.stack(squares).sum().sqrt() / self.loss_scale

    def step(self):
        norm = self.grad_norm()
        ratio = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
        for p, m in zip(self.half, self.full):
            m.grad = p.grad.float() / self.loss_scale * ratio
            p.grad = None
        self.opt.step()
        with torch.no_grad():
            for p, m in zip(self.half, self.full):
                p.copy_(m)
        return norm.item()


def batch_of(text, starts):
    ctx = text[starts[:, None] + torch.arange(CONTEXT)]
    return ctx, text[starts + CONTEXT]


def val_loss(model, text):
    with torch.no_grad():
        ctx, nxt = batch_of(text, torch.arange(0, len(text) - CONTEXT - 1, 2))
        return F.cross_entropy(model(ctx).float(), nxt).item()


gen = torch.Generator().manual_seed(70)
text = make_text(4000, gen)
train_text, val_text = text[:-2500], text[-2500:]
model = CharModel().half()
master = MasterWeights(model, lr=0.3, loss_scale=1024.0, max_norm=1.0)
steps = 350
for step in range(steps):
    master.opt.param_groups[0]["lr"] = 0.3 * (1 - step / steps)
    starts = torch.randint(0, len(train_text) - CONTEXT - 1, (64,), generator=gen)
    ctx, nxt = batch_of(train_text, starts)
    loss = F.cross_entropy(model(ctx).float(), nxt)
    (loss * master.loss_scale).backward()
    norm = master.step()
    if step % 70 == 0:
        v = val_loss(model, val_text)
        print(f"step {step} loss {loss.item():.3f} norm {norm:.3f} val {v:.3f}")
print(f"RESULT {val_loss(model, val_text):.5f}")
