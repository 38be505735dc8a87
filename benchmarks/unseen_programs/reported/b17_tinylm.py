"""Tiny causal language model on sentences from a small probabilistic grammar."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

torch.set_num_threads(1)
VOCAB, BOS, LEN = 24, 0, 20


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.stack([torch.randperm(VOCAB - 1, generator=torch.Generator().manual_seed(50 + k)) + 1 for k in range(3)])
    docs = torch.zeros(n, LEN, dtype=torch.long)
    docs[:, 1] = torch.randint(1, VOCAB, (n,), generator=g)
    for t in range(2, LEN):
        pick = (torch.rand(n, generator=g) < 0.1).long()
        docs[:, t] = table[pick, docs[:, t - 1] - 1]
    return docs


class CausalLM(nn.Module):
    def __init__(self, dim=48, heads=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(LEN, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.lm_head = nn.Linear(dim, VOCAB, bias=False)
        self.lm_head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.05)

    def forward(self, ids, labels=None):
        t = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        h = self.body(self.tok(ids) + self.pos(torch.arange(t)), mask=mask, is_causal=True)
        logits = self.lm_head(h)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return logits, loss


def collate(rows):
    ids = torch.stack(rows)
    inputs, labels = ids[:, :-1], ids[:, 1:]
    return {"ids": inputs.contiguous(), "labels": labels.contiguous()}


@torch.no_grad()
def next_token_error(model, docs):
    model.eval()
    logits, _ = model(docs)
    guess = logits[:, 1:-1].argmax(-1)
    return (guess != docs[:, 2:]).float().mean().item()


def main():
    torch.manual_seed(19)
    train = DataLoader(corpus(1500, 1), batch_size=32, shuffle=True, collate_fn=collate)
    val = corpus(200, 2)
    model = CausalLM()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for epoch in range(4):
        model.train()
        for batch in train:
            _, loss = model(**batch)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.3f} next-token error {next_token_error(model, val):.3f}")
    print("RESULT", next_token_error(model, val))


if __name__ == "__main__":
    main()
