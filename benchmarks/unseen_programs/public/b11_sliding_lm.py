"""Fine-tunes a decoder with alternating sliding-window and full attention on symbol streams."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(19)


@dataclass
class Config:
    vocab_size: int = 32
    hidden_size: int = 48
    num_heads: int = 4
    num_layers: int = 4
    sliding_window: int = 12
    max_len: int = 24


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h = cfg.num_heads
        self.qkv = nn.Linear(cfg.hidden_size, 3 * cfg.hidden_size, bias=False)
        self.o_proj = nn.Linear(cfg.hidden_size, cfg.hidden_size, bias=False)

    def forward(self, x, attention_mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(-1, -2) * (d // self.h) ** -0.5
        weights = 50.0 * torch.tanh(weights / 50.0) + attention_mask
        return self.o_proj((weights.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class DecoderLayer(nn.Module):
    def __init__(self, cfg, layer_idx):
        super().__init__()
        self.is_sliding = not bool(layer_idx % 2)
        self.sliding_window = cfg.sliding_window
        self.attn = Attention(cfg)
        self.gate = nn.Linear(cfg.hidden_size, 2 * cfg.hidden_size, bias=False)
        self.up = nn.Linear(cfg.hidden_size, 2 * cfg.hidden_size, bias=False)
        self.down = nn.Linear(2 * cfg.hidden_size, cfg.hidden_size, bias=False)
        self.norm1, self.norm2 = RMSNorm(cfg.hidden_size), RMSNorm(cfg.hidden_size)

    def forward(self, x, attention_mask):
        if self.is_sliding:
            min_dtype = torch.finfo(x.dtype).min
            ones = torch.ones_like(attention_mask)
            attention_mask = attention_mask * torch.tril(ones, diagonal=-self.sliding_window)
        x = x + self.attn(self.norm1(x), attention_mask)
        y = self.norm2(x)
        return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))


class CausalLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.position = nn.Parameter(0.1 * torch.randn(cfg.max_len, cfg.hidden_size))
        self.layers = nn.ModuleList(DecoderLayer(cfg, i) for i in range(cfg.num_layers))
        self.norm = RMSNorm(cfg.hidden_size)
        self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)

    def forward(self, ids, labels=None):
        t = ids.shape[1]
        mask = torch.full((1, 1, t, t), torch.finfo(torch.float32).min).triu(1)
        x = self.embed(ids) + self.position[:t]
        for layer in self.layers:
            x = layer(x, mask)
        logits = 30.0 * torch.tanh(self.lm_head(self.norm(x)) / 30.0)
        if labels is None:
            return logits
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])


def streams(n, cfg, table):
    """The next symbol depends on the two before it, with some noise."""
    ids = torch.randint(0, cfg.vocab_size, (n, cfg.max_len))
    for t in range(2, cfg.max_len):
        rule = table[ids[:, t - 1], ids[:, t - 2] % 3]
        keep = torch.rand(n) < 0.85
        ids[:, t] = torch.where(keep, rule, ids[:, t])
    return ids


@torch.no_grad()
def completion_loss(model, ids):
    """Score every symbol from the text before it, as in generation."""
    losses = [F.cross_entropy(model(ids[:, :t])[:, -1], ids[:, t]) for t in range(2, ids.shape[1])]
    return torch.stack(losses).mean().item()


cfg = Config()
table = torch.randint(0, cfg.vocab_size, (cfg.vocab_size, 3))
train_ids, eval_ids = streams(3000, cfg, table), streams(100, cfg, table)
model = CausalLM(cfg)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 260)
for step in range(1, 261):
    batch = train_ids[torch.randint(0, len(train_ids), (24,))]
    loss = model(batch, labels=batch)
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 52 == 0:
        print({"step": step, "loss": round(loss.item(), 4), "grad_norm": round(float(grad_norm), 3),
               "lr": round(scheduler.get_last_lr()[0], 6)})
print("RESULT", round(completion_loss(model, eval_ids), 5))
