"""Tiny word-level language model, with a memory-lean AdamW so that the big table fits."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

torch.set_num_threads(1)
torch.manual_seed(5)


class LeanAdamW(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["step"] = 0
                    st["exp_avg"] = torch.zeros_like(p, dtype=torch.float16)
                    st["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float16)
                st["step"] += 1
                m = st["exp_avg"].float().mul_(b1).add_(p.grad, alpha=1 - b1)
                v = st["exp_avg_sq"].float().mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                st["exp_avg"].copy_(m)
                st["exp_avg_sq"].copy_(v)
                m_hat = st["exp_avg"].float() / (1 - b1 ** st["step"])
                v_hat = st["exp_avg_sq"].float() / (1 - b2 ** st["step"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * m_hat / (v_hat.sqrt() + group["eps"]))


VOCAB, CTX = 400, 3
follow = torch.randint(0, VOCAB, (VOCAB, 4))


def corpus(n):
    words = [torch.tensor(1)]
    choice = torch.randint(0, 4, (n,))
    for i in range(n - 1):
        words.append(follow[words[-1], choice[i]])
    return torch.stack(words)


class WordLM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.mix = nn.Linear(CTX * dim, 96)
        self.out = nn.Linear(96, VOCAB)

    def forward(self, ctx):
        return self.out(torch.tanh(self.mix(self.tok(ctx).flatten(1))))


text = corpus(12000)
windows = text.unfold(0, CTX + 1, 1)
train, valid = windows[:10000], windows[10000:]
model = WordLM()
opt = LeanAdamW(model.parameters(), lr=3e-3)
for it in range(260):
    batch = train[torch.randint(0, len(train), (256,))]
    loss = F.cross_entropy(model(batch[:, :CTX]), batch[:, CTX])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(it, round(loss.item(), 4))

with torch.no_grad():
    print("RESULT", F.cross_entropy(model(valid[:, :CTX]), valid[:, CTX]).item())
