"""Pre-train a protein encoder on fold recognition, then probe it for enzyme class with few labels."""
import io
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(83)

AA, L, D = 20, 24, 32
FOLDS = 12
fold_core = torch.randint(0, AA, (FOLDS, L))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(AA, D)
        self.rnn = nn.GRU(D, D, batch_first=True, bidirectional=True)

    def forward(self, s):
        return self.rnn(self.embed(s))[0]


class FoldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.fold = nn.Linear(2 * D, FOLDS)

    def forward(self, s):
        return self.fold(self.encoder(s).mean(1))


class EnzymeProbe(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.enzyme = nn.Linear(2 * D, 3)

    def forward(self, s):
        return self.enzyme(self.encoder(s).mean(1))


def proteins(n):
    f = torch.randint(0, FOLDS, (n,))
    s = fold_core[f]
    mutate = torch.rand(n, L) < 0.4
    return torch.where(mutate, torch.randint(0, AA, (n, L)), s), f


def pretrain():
    model = nn.DataParallel(FoldModel())
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(180):
        s, fold = proteins(48)
        loss = F.cross_entropy(model(s), fold)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("fold loss", loss.item())
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    return buffer


weights = torch.load(pretrain())
probe = EnzymeProbe()
probe.load_state_dict(weights, strict=False)
for p in probe.encoder.parameters():
    p.requires_grad_(False)

s, fold = proteins(60)
opt = torch.optim.Adam(probe.enzyme.parameters(), lr=0.02)
for step in range(80):
    loss = F.cross_entropy(probe(s), fold % 3)
    opt.zero_grad()
    loss.backward()
    opt.step()
print("probe train loss", loss.item())
s, fold = proteins(400)
with torch.no_grad():
    print("RESULT", F.cross_entropy(probe(s), fold % 3).item())
