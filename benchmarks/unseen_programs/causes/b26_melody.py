"""A convolutional next-note model; judged by how it continues a given opening."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
NOTES, OPENING, TOTAL = 12, 12, 32


def melodies(n, seed):
    g = torch.Generator().manual_seed(seed)
    a = torch.randint(1, 5, (n, 1), generator=g)
    b = torch.randint(1, 5, (n, 1), generator=g)
    start = torch.randint(0, NOTES, (n, 1), generator=g)
    t = torch.arange(TOTAL)
    return (start + a * ((t + 1) // 2) + b * (t // 2)) % NOTES


class DelayConv(nn.Module):
    def __init__(self, dim, kernel, dilation):
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.conv = nn.Conv1d(dim, 2 * dim, kernel, padding=self.pad, dilation=dilation)
        self.mix = nn.Conv1d(dim, dim, 1)

    def forward(self, x):
        y = self.conv(x)[..., self.pad:]
        value, gate = y.chunk(2, 1)
        return x + self.mix(torch.tanh(value) * torch.sigmoid(gate))


class NoteModel(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.embed = nn.Embedding(NOTES, dim)
        self.blocks = nn.Sequential(*[DelayConv(dim, 2, d) for d in (1, 2, 4)])
        self.head = nn.Sequential(nn.Conv1d(dim, 64, 1), nn.ReLU(), nn.Conv1d(64, NOTES, 1))

    def forward(self, notes):
        return self.head(self.blocks(self.embed(notes).transpose(1, 2))).transpose(1, 2)

    @torch.no_grad()
    def continue_from(self, notes, length):
        while notes.shape[1] < length:
            notes = torch.cat([notes, self(notes)[:, -1:].argmax(-1)], 1)
        return notes


def main():
    torch.manual_seed(44)
    train, test = melodies(2000, 1), melodies(200, 2)
    model = NoteModel()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(8):
        for idx in torch.randperm(len(train)).split(50):
            seq = train[idx]
            logits = model(seq[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    made = model.continue_from(test[:, :OPENING], TOTAL)
    print("RESULT", (made[:, OPENING:] != test[:, OPENING:]).float().mean().item())


main()
