"""Logistic text classifier with per-example gradients (bag of hashed words)."""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.set_num_threads(1)
torch.manual_seed(11)

VOCAB, DOCS = 60, 600
topic = torch.randint(0, 3, (DOCS,))
rates = torch.rand(3, VOCAB) ** 3
docs = torch.poisson(rates[topic] * 2.0)
docs = docs / docs.sum(1, keepdim=True).clamp(min=1) * 10

net = nn.Sequential(nn.Linear(VOCAB, 24), nn.Tanh(), nn.Linear(24, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)


def one_loss(params, doc, label):
    logits = functional_call(net, params, (doc[None],))
    return nn.functional.cross_entropy(logits, label[None])


per_example = vmap(grad(one_loss), in_dims=(None, 0, 0))


def private_gradients(doc, label, bound, noise):
    params = {k: p.detach() for k, p in net.named_parameters()}
    grads = per_example(params, doc, label)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factor = (bound / (norms + 1e-12)).clamp(max=1.0)
    for name, p in net.named_parameters():
        g = torch.einsum("b,b...->...", factor, grads[name])
        g = g + noise * bound * torch.randn_like(g)
        p.grad = g / len(doc)


for step in range(100):
    rows = torch.randint(0, 450, (64,))
    private_gradients(docs[rows], topic[rows], bound=1e-4, noise=0.3)
    opt.step()
    if step % 25 == 0:
        with torch.no_grad():
            print(step, nn.functional.cross_entropy(net(docs[rows]), topic[rows]).item())

with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(docs[450:]), topic[450:]).item())
