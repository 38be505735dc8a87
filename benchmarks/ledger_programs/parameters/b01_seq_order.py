"""Small transformer classifier: does the first token outrank the last one?"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
torch.set_num_threads(1)
V, T, D = 12, 8, 32


class Block(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.zeros(1, T, D))
        self.blocks = nn.ModuleList([Block(D) for _ in range(2)])
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, 2)

    def forward(self, idx):
        x = self.tok(idx) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x).mean(1))


def configure_optimizer(model, lr=3e-3, weight_decay=0.01):
    decay, no_decay = [], []
    for m in model.modules():
        if isinstance(m, nn.Linear):
            decay.append(m.weight)
            no_decay.append(m.bias)
        elif isinstance(m, (nn.LayerNorm, nn.Embedding)):
            no_decay.extend(m.parameters())
    groups = [{"params": decay, "weight_decay": weight_decay},
              {"params": no_decay, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def batch(n):
    x = torch.randint(0, V, (n, T))
    return x, (x[:, 0] > x[:, -1]).long()


model = Classifier()
opt = configure_optimizer(model)
for step in range(300):
    x, y = batch(64)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 100 == 0:
        print(step, round(loss.item(), 4))

model.eval()
with torch.no_grad():
    x, y = batch(2000)
    print("result:", F.cross_entropy(model(x), y).item())
