"""Pretrains a masked language model on protein-like strings and scores masked residues."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(151)

RESIDUES, LENGTH = 12, 20
PAD, MASK, FIRST = 0, 1, 2
VOCAB = FIRST + RESIDUES


def proteins(n, seed):
    """Families of motifs: a residue mostly follows from its two neighbours' family."""
    g = torch.Generator().manual_seed(seed)
    motifs = torch.randint(0, RESIDUES, (4, LENGTH), generator=torch.Generator().manual_seed(5))
    family = torch.randint(0, 4, (n,), generator=g)
    shift = torch.randint(0, 3, (n, 1), generator=g)
    seq = (motifs[family] + shift) % RESIDUES
    mutate = torch.rand(n, LENGTH, generator=g) < 0.08
    seq = torch.where(mutate, torch.randint(0, RESIDUES, seq.shape, generator=g), seq) + FIRST
    length = torch.randint(LENGTH - 6, LENGTH + 1, (n, 1), generator=g)
    return torch.where(torch.arange(LENGTH) < length, seq, PAD)


class Masker:
    """Corrupts a batch and makes its labels."""

    def __init__(self, rate, seed):
        self.rate = rate
        self.g = torch.Generator().manual_seed(seed)

    def choose(self, tokens):
        return (torch.rand(tokens.shape, generator=self.g) < self.rate) & (tokens != PAD)

    def __call__(self, tokens):
        chosen = self.choose(tokens)
        labels = tokens.clone()
        labels[chosen | (tokens == PAD)] = -100
        roll = torch.rand(tokens.shape, generator=self.g)
        inputs = tokens.clone()
        inputs[chosen & (roll < 0.8)] = MASK
        other = chosen & (roll >= 0.9)
        random = torch.randint(FIRST, VOCAB, tokens.shape, generator=self.g)
        return torch.where(other, random, inputs), labels


class ProteinModel(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.token = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.place = nn.Embedding(LENGTH, dim)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 80, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        h = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.out(self.encoder(h, src_key_padding_mask=tokens == PAD))


@torch.no_grad()
def masked_nll(model, tokens):
    """Negative log-likelihood of residues that are hidden, 15 percent at a time."""
    model.eval()
    hidden = Masker(0.15, seed=77).choose(tokens)
    logp = model(tokens.masked_fill(hidden, MASK)).log_softmax(-1)
    nll = -logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    model.train()
    return nll[hidden].mean().item()


train, val = proteins(1600, 1), proteins(300, 2)
masker = Masker(0.15, seed=6)
model = ProteinModel()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
for epoch in range(6):
    for batch in train[torch.randperm(len(train))].split(50):
        inputs, labels = masker(batch)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f} masked {masked_nll(model, val):.4f}")
print("RESULT", masked_nll(model, val))
