import argparse
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--dtype", default="bfloat16")
args = parser.parse_args()

torch.manual_seed(11)
torch.set_num_threads(1)
w0 = torch.randn(12, 5)
w1 = w0 + 0.5 * torch.randn(12, 5)


def build():
    return nn.Sequential(nn.Linear(12, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 5))


def get_batch(w, n=64):
    x = torch.randn(n, 12)
    return x, (x @ w).argmax(-1)


# ---- pretraining
net = build()
with torch.no_grad():
    net[0].weight.mul_(4)
    net[3].weight.mul_(6)
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
for _ in range(200):
    x, y = get_batch(w0)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
path = os.path.join(tempfile.mkdtemp(), "pretrained.pt")
torch.save(net.state_dict(), path)

# ---- fine-tuning
dtype = getattr(torch, args.dtype)
model = build()
model.load_state_dict(torch.load(path))
model = model.to(dtype)
opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.0)
for step in range(args.steps):
    x, y = get_batch(w1)
    loss = F.cross_entropy(model(x.to(dtype)).float(), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, loss.item())

with torch.no_grad():
    x, y = get_batch(w1, 4000)
    print("result:", F.cross_entropy(model(x.to(dtype)).float(), y).item())
