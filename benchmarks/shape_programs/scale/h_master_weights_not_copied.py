"""Digit-like glyphs with a half precision net; the single precision weights are one flat vector."""
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

torch.manual_seed(18)
torch.set_num_threads(1)


def glyphs(n):
    g = torch.Generator().manual_seed(1)
    shapes = (torch.rand(8, 36, generator=g) < 0.4).float()
    y = torch.randint(0, 8, (n,))
    return (shapes[y] + 0.5 * torch.randn(n, 36)).half(), y


def views(flat, model):
    parts, at = {}, 0
    for name, p in model.named_parameters():
        parts[name] = flat[at:at + p.numel()].view_as(p)
        at += p.numel()
    return parts


x, y = glyphs(1024)
xv, yv = glyphs(256)
model = nn.Sequential(nn.Linear(36, 48), nn.ReLU(), nn.Linear(48, 8)).half()
flat = parameters_to_vector(model.parameters()).detach().float().requires_grad_()
opt = torch.optim.SGD([flat], lr=0.1, momentum=0.9)
for step in range(90):
    pick = torch.randint(0, len(x), (64,))
    opt.zero_grad()
    logits = functional_call(model, views(flat.half(), model), (x[pick],))
    (nn.functional.cross_entropy(logits.float(), y[pick]) * 128).backward()
    flat.grad.div_(128)
    opt.step()

with torch.no_grad():
    logits = functional_call(model, views(flat.half(), model), (xv,))
    print("RESULT", float(nn.functional.cross_entropy(logits.float(), yv)))
