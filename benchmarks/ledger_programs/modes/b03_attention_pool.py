import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
V, T, D = 10, 10, 32


class SelfAttention(nn.Module):
    def __init__(self, d, heads=4, dropout=0.3):
        super().__init__()
        self.h, self.dropout = heads, dropout
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.resid = nn.Dropout(0.1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.resid(self.proj(y.transpose(1, 2).reshape(b, t, c)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(0.02 * torch.randn(T, D))
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = SelfAttention(D)
        self.mlp = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D), nn.Dropout(0.1))
        self.head = nn.Linear(D, 1)

    def forward(self, ids):
        x = self.emb(ids) + self.pos
        x = x + self.attn(self.n1(x))
        x = x + self.mlp(self.n2(x))
        return self.head(x[:, -1]).squeeze(-1)


def batch(n):
    ids = torch.randint(0, V, (n, T))
    return ids, (ids == ids[:, -1:]).sum(1).float()


model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(400):
    model.train()
    ids, y = batch(64)
    loss = F.mse_loss(model(ids), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, loss.item())

model.eval()
with torch.no_grad():
    ids, y = batch(2000)
    print("result:", F.mse_loss(model(ids), y).item())
