"""Next-item recommender for shop sessions: a small causal transformer in bf16."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)

CONFIG = {
    "items": 80, "max_len": 12, "dim": 32, "heads": 4, "layers": 2,
    "batch": 48, "steps": 200, "lr": 4e-3, "warmup": 20,
}
PAD = 0


def make_sessions(n, gen):
    """Shoppers walk along chains of related items; short sessions are padded on the left."""
    items, length = CONFIG["items"], CONFIG["max_len"]
    sessions = torch.zeros(n, length + 1, dtype=torch.long)
    for i in range(n):
        k = int(torch.randint(4, length + 2, (1,), generator=gen))
        cur = int(torch.randint(0, items, (1,), generator=gen))
        walk = []
        for _ in range(k):
            walk.append(cur + 1)
            if torch.rand(1, generator=gen).item() < 0.85:
                cur = (cur * 3 + 7) % items
            else:
                cur = int(torch.randint(0, items, (1,), generator=gen))
        sessions[i, length + 1 - k:] = torch.tensor(walk)
    return sessions


def attention_bias(inputs):
    """Additive mask (B, 1, T, T): earlier and equal positions that are not padding."""
    t = inputs.shape[1]
    causal = torch.tril(torch.ones(t, t, dtype=torch.bool))
    allowed = causal[None] & (inputs != PAD)[:, None, :]
    bias = torch.zeros(allowed.shape)
    bias[~allowed] = torch.finfo(torch.float32).min
    return bias[:, None]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, bias):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
        scores = scores + bias.to(scores.dtype)
        att = scores.softmax(dim=-1).to(v.dtype)
        h = (att @ v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(h)
        return x + self.mlp(self.norm2(x))


class SessionModel(nn.Module):
    def __init__(self, items, max_len, dim, heads, layers):
        super().__init__()
        self.item = nn.Embedding(items + 1, dim, padding_idx=PAD)
        self.place = nn.Parameter(0.02 * torch.randn(max_len, dim))
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, items + 1)

    def forward(self, inputs):
        bias = attention_bias(inputs)
        x = self.item(inputs) + self.place
        for block in self.blocks:
            x = block(x, bias)
        return self.head(self.norm(x))


def session_loss(model, sessions):
    inputs, targets = sessions[:, :-1], sessions[:, 1:].clone()
    targets[inputs == PAD] = PAD
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(inputs)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=PAD)


def main():
    c = CONFIG
    gen = torch.Generator().manual_seed(1)
    train, val = make_sessions(1500, gen), make_sessions(300, gen)
    model = SessionModel(c["items"], c["max_len"], c["dim"], c["heads"], c["layers"])
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / c["warmup"]))
    for step in range(c["steps"]):
        pick = torch.randint(0, len(train), (c["batch"],), generator=gen)
        loss = session_loss(model, train[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        print(f"RESULT {session_loss(model, val).item():.5f}")


if __name__ == "__main__":
    main()
