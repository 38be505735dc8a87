"""Trains a causal transformer on melodies and scores the next note of held-out ones."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(107)

NOTES, LENGTH = 14, 24


def compose(n, seed):
    """Melodies move by steps and leaps that depend on the last note."""
    g = torch.Generator().manual_seed(seed)
    logits = 2.2 * torch.randn(NOTES, NOTES, generator=torch.Generator().manual_seed(0))
    table = logits.softmax(-1)
    rows = [torch.randint(0, NOTES, (n,), generator=g)]
    for _ in range(LENGTH):
        rows.append(torch.multinomial(table[rows[-1]], 1, generator=g).squeeze(1))
    return torch.stack(rows, dim=1)


class Melodies(Dataset):
    def __init__(self, notes):
        self.notes = notes

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, i):
        return self.notes[i, :-1], self.notes[i, 1:]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1)
        q, k, v = (p.transpose(1, 2) for p in qkv.unbind(2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class MelodyModel(nn.Module):
    def __init__(self, dim=32, heads=4, depth=2):
        super().__init__()
        self.note = nn.Embedding(NOTES, dim)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, NOTES)

    def forward(self, notes, labels=None):
        h = self.note(notes) + self.place[: notes.shape[1]]
        logits = self.out(self.norm(self.blocks(h)))
        if labels is None:
            return logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return logits, loss


@torch.no_grad()
def surprise(model, melodies):
    """Nats per note for the note that follows."""
    model.eval()
    logp = model(melodies[:, :-1]).log_softmax(-1)
    picked = logp.gather(-1, melodies[:, 1:].unsqueeze(-1))
    model.train()
    return -picked.mean().item()


def main():
    loader = DataLoader(Melodies(compose(960, 1)), batch_size=48, shuffle=True)
    held_out = compose(200, 2)
    model = MelodyModel()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    steps = 6 * len(loader)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=steps)
    for epoch in range(6):
        for notes, labels in loader:
            _, loss = model(notes, labels)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
        print(f"epoch {epoch} loss {loss.item():.4f} held out {surprise(model, held_out):.4f}")
    print("RESULT", surprise(model, held_out))


if __name__ == "__main__":
    main()
