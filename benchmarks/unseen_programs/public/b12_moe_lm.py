"""Trains a mixture-of-experts causal language model on a synthetic grammar."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(23)


def causal_lm_loss(logits, labels, vocab_size, ignore_index=-100):
    logits = logits.float()
    labels = F.pad(labels, (0, 1), value=ignore_index)
    targets = labels[..., 1:].contiguous()
    return F.cross_entropy(logits.reshape(-1, vocab_size), targets.view(-1),
                           ignore_index=ignore_index)


class TopKGating(nn.Module):
    def __init__(self, dim, num_experts, top_k):
        super().__init__()
        self.layer, self.top_k = nn.Linear(dim, num_experts, bias=False), top_k

    def forward(self, x):
        probs = self.layer(x).softmax(-1)
        top, idx = probs.topk(self.top_k, dim=-1)
        gates = torch.zeros_like(probs).scatter(-1, idx, top / top.sum(-1, keepdim=True))
        load = (gates > 0).float().mean(0)
        return gates, probs.shape[-1] * (load * probs.mean(0)).sum()


class SparseMLP(nn.Module):
    def __init__(self, dim, num_experts=4, top_k=2):
        super().__init__()
        self.router = TopKGating(dim, num_experts, top_k)
        self.w_in = nn.Parameter(torch.randn(num_experts, dim, 2 * dim) / math.sqrt(dim))
        self.w_out = nn.Parameter(torch.randn(num_experts, 2 * dim, dim) / math.sqrt(2 * dim))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        gates, aux = self.router(flat)
        hidden = F.silu(torch.einsum("nd,edh->enh", flat, self.w_in))
        out = torch.einsum("enh,ehd,ne->nd", hidden, self.w_out, gates)
        return out.view_as(x), aux


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = SparseMLP(dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(att.transpose(1, 2).reshape(b, t, d))
        y, aux = self.mlp(self.norm2(x))
        return x + y, aux


class MoeForCausalLM(nn.Module):
    def __init__(self, vocab_size=40, dim=48, heads=4, layers=2, max_len=32, aux_coef=0.01):
        super().__init__()
        self.vocab_size, self.aux_coef = vocab_size, aux_coef
        self.wte, self.wpe = nn.Embedding(vocab_size, dim), nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, input_ids, labels=None):
        x = self.wte(input_ids) + self.wpe.weight[:input_ids.shape[1]]
        aux_total = 0.0
        for block in self.blocks:
            x, aux = block(x)
            aux_total = aux_total + aux
        logits = self.lm_head(self.norm(x))
        loss = None
        if labels is not None:
            logits = logits.float()
            shift_logits = logits[..., :-1, :].contiguous()
            shift_labels = labels[..., 1:].contiguous()
            loss = causal_lm_loss(shift_logits, shift_labels, self.vocab_size)
            loss = loss + self.aux_coef * aux_total
        return {"loss": loss, "logits": logits}


def grammar(n, length, vocab, successors, generator):
    ids = torch.randint(0, vocab, (n, length), generator=generator)
    for t in range(1, length):
        pick = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), n, True, generator=generator)
        ids[:, t] = successors[ids[:, t - 1], pick]
    return ids


@torch.no_grad()
def perplexity_eval(model, ids):
    model.eval()
    log_probs = model(ids)["logits"].log_softmax(-1)
    nll = -log_probs[:, :-1].gather(-1, ids[:, 1:, None]).mean().item()
    model.train()
    return nll


generator = torch.Generator().manual_seed(4)
successors = torch.stack([torch.randperm(40, generator=generator)[:3] for _ in range(40)])
train = grammar(2000, 32, 40, successors, generator)
held_out = grammar(150, 32, 40, successors, generator)
model = MoeForCausalLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
warmup, total = 20, 180
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min((s + 1) / warmup, 0.5 * (1 + math.cos(math.pi * s / total))))
for step in range(1, total + 1):
    batch = train[torch.randint(0, len(train), (16,))]
    loss = model(batch, labels=batch)["loss"]
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 45 == 0:
        print(f"step {step:4d} | loss {loss.item():.4f} | "
              f"held-out nll {perplexity_eval(model, held_out):.4f}")
print("RESULT", round(perplexity_eval(model, held_out), 5))
