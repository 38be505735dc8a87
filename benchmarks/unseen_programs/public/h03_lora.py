"""Adapts a frozen pretrained sequence classifier to a new task with low-rank updates."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(107)

VOCAB, LENGTH, DIM = 120, 14, 48


class LoRALinear(nn.Linear):
    def __init__(self, a, b, r=0, alpha=16):
        super().__init__(a, b)
        self.r = r
        if r:
            self.lora_A = nn.Parameter(torch.empty(r, a))
            self.lora_B = nn.Parameter(torch.zeros(b, r))
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
            self.scaling, self.merged = alpha / r, False

    def train(self, mode=True):
        super().train(mode)
        if self.r:
            if mode and self.merged:
                self.weight.data -= self.scaling * self.lora_B.data @ self.lora_A.data
                self.merged = False
            elif not mode and not self.merged:
                self.weight.data += self.scaling * self.lora_B.data @ self.lora_A.data
                self.merged = True
        return self

    def forward(self, x):
        out = F.linear(x, self.weight, self.bias)
        if self.r and not self.merged:
            out = out + self.scaling * (x @ self.lora_A.t() @ self.lora_B.t())
        return out


class Block(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.q, self.v = LoRALinear(DIM, DIM, r), LoRALinear(DIM, DIM, r)
        self.k, self.o = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.ffn = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        h = self.n1(x)
        q, k, v = (f(h).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        att = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.o(att)
        return x + self.ffn(self.n2(x))


class Classifier(nn.Module):
    def __init__(self, r=0, classes=4):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block(r) for _ in range(2))
        self.head = nn.Linear(DIM, classes)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def task(n, profiles):
    y = torch.randint(0, len(profiles), (n,))
    return torch.multinomial(profiles[y], LENGTH, replacement=True), y


def mark_only_lora_as_trainable(model):
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name or name.startswith("head"))


def fit(model, data, val, steps, lr, tag):
    params = [p for p in model.parameters() if p.requires_grad]
    total = sum(p.numel() for p in model.parameters())
    print(tag, "trainable", sum(p.numel() for p in params), "of", total)
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for step in range(1, steps + 1):
        model.train()
        idx = torch.randint(0, len(data[0]), (48,))
        loss = F.cross_entropy(model(data[0][idx]), data[1][idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            model.eval()
            with torch.no_grad():
                v = F.cross_entropy(model(val[0]), val[1]).item()
            print(f"{tag} step {step} loss {loss.item():.4f} val {v:.4f}")
    return v


old, new = (torch.softmax(1.3 * torch.randn(4, VOCAB), -1) for _ in range(2))
base = Classifier()
fit(base, task(3000, old), task(500, old), 120, 2e-3, "pretrain")
adapted = Classifier(r=4)
adapted.load_state_dict(base.state_dict(), strict=False)
mark_only_lora_as_trainable(adapted)
result = fit(adapted, task(3000, new), task(500, new), 160, 1e-2, "lora")
print("RESULT", round(result, 5))
