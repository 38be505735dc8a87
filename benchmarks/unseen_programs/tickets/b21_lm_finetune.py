"""Fine-tune a tiny causal language model on padded prompts; report held-out answer loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(85)
DIGITS, PLUS, ARROW, EOS, VOCAB = 10, 10, 11, 255, 256


def make_samples(n, gen):
    rows = []
    for _ in range(n):
        k = int(torch.randint(2, 9, (1,), generator=gen))
        shift = int(torch.randint(0, 3, (1,), generator=gen))
        digits = torch.randint(0, DIGITS, (k,), generator=gen).tolist()
        answer = [(d + shift) % DIGITS for d in digits[::-1]]
        prompt = [PLUS] * (shift + 1) + digits + [ARROW]
        ids = prompt + answer + [EOS]
        rows.append(dict(input_ids=ids[:-1], labels=ids[1:],
                         loss_mask=[0] * (len(prompt) - 1) + [1] * (len(answer) + 1)))
    return rows


def pad_to_seq_length(sample, seq_length, eos_token_id):
    pad_len = seq_length - len(sample["input_ids"])
    if pad_len <= 0:
        return {k: v[:seq_length] for k, v in sample.items()}
    return {k: v + [eos_token_id if v != "loss_mask" else 0] * pad_len for k, v in sample.items()}


def collate_fn(batch, seq_length=24):
    padded = [pad_to_seq_length(s, seq_length, EOS) for s in batch]
    return {k: torch.tensor([s[k] for s in padded]) for k in padded[0]}


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class CausalLM(nn.Module):
    def __init__(self, d=48, layers=2, heads=4, ctx=24):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList([Block(d, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, VOCAB, bias=False)
        for emb in (self.wte, self.wpe):
            nn.init.normal_(emb.weight, std=0.1)

    def forward(self, input_ids):
        x = self.wte(input_ids) + self.wpe.weight[:input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def masked_cross_entropy(logits, labels, loss_mask):
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    mask = loss_mask.flatten().float()
    return (loss * mask).sum() / mask.sum()


@torch.no_grad()
def answer_loss(model, rows):
    model.eval()
    total = count = 0.0
    for row in rows:
        logits = model(torch.tensor([row["input_ids"]]))[0]
        nll = F.cross_entropy(logits, torch.tensor(row["labels"]), reduction="none")
        keep = torch.tensor(row["loss_mask"]).bool()
        total, count = total + nll[keep].sum().item(), count + keep.sum().item()
    model.train()
    return total / count


def main():
    gen = torch.Generator().manual_seed(1)
    train, held = make_samples(2000, gen), make_samples(80, gen)
    model = CausalLM()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=0.05),
                             dict(params=rest, weight_decay=0.0)], lr=3e-3, betas=(0.9, 0.95))
    steps, accum = 200, 1
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        opt.zero_grad()
        for _ in range(accum):
            pick = torch.randint(0, len(train), (24,)).tolist()
            batch = collate_fn([train[i] for i in pick])
            loss = masked_cross_entropy(model(batch["input_ids"]), batch["labels"],
                                        batch["loss_mask"])
            (loss / accum).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} grad_norm {norm:.3f} "
                  f"answer_loss {answer_loss(model, held):.4f}")
    print("RESULT", answer_loss(model, held))


if __name__ == "__main__":
    main()
