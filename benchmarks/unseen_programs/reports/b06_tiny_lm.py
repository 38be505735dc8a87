"""Small causal language model on a synthetic grammar."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

torch.set_num_threads(1)
VOCAB = 24
IGNORE = -100


def corpus(n, length, seed):
    """Every token has one usual successor; every sixth one is free."""
    gen = torch.Generator().manual_seed(seed)
    successor = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(40))
    ids = torch.randint(0, VOCAB, (n, length), generator=gen)
    keep = torch.rand(n, length, generator=gen) < 5 / 6
    for t in range(1, length):
        ids[:, t] = torch.where(keep[:, t], successor[ids[:, t - 1]], ids[:, t])
    return ids


class CausalLM(nn.Module):
    """Returns (loss, logits); the loss is that of the next token."""

    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB)

    def forward(self, input_ids, labels=None):
        h, _ = self.rnn(self.embed(input_ids))
        logits = self.lm_head(self.norm(h))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(
                logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1), ignore_index=IGNORE)
        return loss, logits


class Collator:
    def __init__(self, max_length):
        self.max_length = max_length

    def __call__(self, rows):
        ids = torch.stack(rows)[:, : self.max_length]
        labels = torch.full_like(ids, IGNORE)
        labels[:, :-1] = ids[:, 1:]
        return {"input_ids": ids, "labels": labels}


@torch.no_grad()
def next_token_error(model, ids):
    model.eval()
    _, logits = model(ids)
    guess = logits[:, :-1].argmax(-1)
    model.train()
    return (guess != ids[:, 1:]).float().mean().item()


def train():
    torch.manual_seed(0)
    loader = DataLoader(corpus(800, 25, 1), batch_size=32, shuffle=True, collate_fn=Collator(24))
    val = corpus(200, 24, 2)
    model = CausalLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    total = 10 * len(loader)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20) * (1 - 0.9 * s / total))
    for epoch in range(10):
        running = 0.0
        for batch in loader:
            loss, _ = model(**batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            running += loss.item()
        print(f"epoch {epoch} loss {running / len(loader):.4f}")
    return next_token_error(model, val)


if __name__ == "__main__":
    print("RESULT", train())
