"""Train a transformer prior over quantised image codes; report held-out nats per code."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(35)
CODES, GRID, BOS = 16, 5, 16
SEQ = GRID * GRID


def quantised_scans(n, gen):
    trans = torch.softmax(2.5 * torch.randn(CODES, CODES,
                                            generator=torch.Generator().manual_seed(8)), 1)
    out = torch.zeros(n, GRID, GRID, dtype=torch.long)
    for i in range(GRID):
        for j in range(GRID):
            left = out[:, i, j - 1] if j else torch.zeros(n, dtype=torch.long)
            up = out[:, i - 1, j] if i else torch.zeros(n, dtype=torch.long)
            prob = trans[left] * trans.roll(3, 1)[up] + 1e-3
            out[:, i, j] = torch.multinomial(prob, 1, generator=gen)[:, 0]
    return out


class DecoderOnlyTransformer(nn.Module):
    def __init__(self, num_tokens, max_seq_len, d=48, heads=4, depth=2):
        super().__init__()
        self.token_embeddings = nn.Embedding(num_tokens, d)
        self.position_embeddings = nn.Parameter(torch.randn(max_seq_len, d) * 0.05)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, batch_first=True,
                                           activation="gelu", norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.to_logits = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, num_tokens))
        mask = torch.full((max_seq_len, max_seq_len), float("-inf")).triu(1)
        self.register_buffer("causal", mask)

    def forward(self, x):
        n = x.shape[1]
        h = self.token_embeddings(x) + self.position_embeddings[:n]
        return self.to_logits(self.blocks(h, mask=self.causal[:n, :n]))


class VQVAETransformerInferer:
    def prepare(self, codes):
        latent = codes.reshape(codes.shape[0], -1)
        return F.pad(latent, (1, 0), value=BOS)

    def __call__(self, inputs, transformer):
        latent = self.prepare(inputs)
        return transformer(latent).transpose(1, 2), latent

    @torch.no_grad()
    def get_likelihood(self, inputs, transformer):
        latent = self.prepare(inputs)
        log_probs = F.log_softmax(transformer(latent[:, :-1]), -1)
        return log_probs.gather(2, latent[:, 1:, None])[..., 0]

    @torch.no_grad()
    def sample(self, n, transformer):
        seq = torch.full((n, 1), BOS)
        for _ in range(SEQ):
            logits = transformer(seq)[:, -1]
            logits[:, BOS] = -1e9
            seq = torch.cat([seq, torch.multinomial(logits.softmax(-1), 1)], 1)
        return seq[:, 1:].view(n, GRID, GRID)


def main():
    gen = torch.Generator().manual_seed(0)
    train = TensorDataset(quantised_scans(1200, gen))
    val = quantised_scans(200, gen)
    loader = DataLoader(train, batch_size=48, shuffle=True, drop_last=True)
    transformer = DecoderOnlyTransformer(CODES + 1, SEQ + 1)
    inferer = VQVAETransformerInferer()
    ce_loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=4e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * len(loader))

    for epoch in range(8):
        transformer.train()
        epoch_loss = 0.0
        for (codes,) in loader:
            optimizer.zero_grad(set_to_none=True)
            logits, target = inferer(codes, transformer)
            loss = ce_loss(logits, target)
            loss.backward()
            nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            epoch_loss += loss.item()
        transformer.eval()
        usage = inferer.sample(32, transformer).unique().numel()
        print(f"epoch {epoch} ce_loss {epoch_loss / len(loader):.4f} codes in samples {usage}")
    nll = -inferer.get_likelihood(val, transformer).mean().item()
    print("RESULT", nll)


if __name__ == "__main__":
    main()
