"""bf16 losses and gradients of micro batches are summed in wide buffers."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
MICRO = 4
model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 3))
params = list(model.parameters())
optimizer = torch.optim.Adam(params, lr=5e-3)
rule = torch.randn(8, 3)


def sample(n):
    x = torch.randn(n, 8)
    return x, (x @ rule + x[:, :3] ** 2).argmax(1)


total, seen = torch.zeros((), dtype=torch.float64), 0
for step in range(60):
    sums = [torch.zeros_like(p) for p in params]
    for _ in range(MICRO):
        x, y = sample(32)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        for s, g in zip(sums, torch.autograd.grad(loss, params)):
            s.add_(g.to(torch.bfloat16), alpha=1 / MICRO)
        total += loss.detach().to(torch.bfloat16)
        seen += 1
    for p, s in zip(params, sums):
        p.grad = s
    optimizer.step()
print("average", (total / seen).item())
x, y = sample(1000)
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(model(x), y).item())
