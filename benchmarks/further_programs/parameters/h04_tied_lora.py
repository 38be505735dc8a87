"""A weight-tied language model (one tensor under two names), then LoRA with B = 0, merged for evaluation."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)
V, D = 32, 32


class LoRA(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) * base.in_features ** -0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.B @ self.A
        return self.base


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        nn.init.normal_(self.emb.weight, std=D ** -0.5)
        self.fc1 = nn.Linear(2 * D, 64)
        self.fc2 = nn.Linear(64, D)
        self.decoder = nn.Linear(D, V)
        self.decoder.weight = self.emb.weight

    def forward(self, ids):
        h = self.emb(ids).flatten(1)
        return self.decoder(self.fc2(F.gelu(self.fc1(h))))


def make(shift, n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(V, (n, 2), generator=g)
    y = (ids[:, 1] + shift * (ids[:, 0] % 2)) % V
    return ids, torch.where(torch.rand(n, generator=g) < 0.1, torch.randint(V, (n,), generator=g), y)


def fit(model, params, data, steps, lr):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    for _ in range(steps):
        i = torch.randint(len(data[0]), (64,))
        loss = F.cross_entropy(model(data[0][i]), data[1][i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


model = LM()
assert len(list(model.parameters())) == 6
print("base", fit(model, model.parameters(), make(3, 4000, 1), 400, 5e-3))
model.requires_grad_(False)
model.fc1, model.fc2 = LoRA(model.fc1, 8), LoRA(model.fc2, 8)
trainable = [p for p in model.parameters() if p.requires_grad]
print("lora", fit(model, trainable, make(9, 4000, 2), 600, 5e-3))
model.fc1, model.fc2 = model.fc1.merge(), model.fc2.merge()
model.eval()
with torch.no_grad():
    ids, y = make(9, 2000, 3)
    print("RESULT", F.cross_entropy(model(ids), y).item())
