"""Lay out the nodes of a ring-of-cliques graph in the plane so that nearness follows random walks."""
import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


def ring_of_cliques(cliques=6, size=5):
    n = cliques * size
    a = torch.zeros(n, n)
    for c in range(cliques):
        s = slice(c * size, (c + 1) * size)
        a[s, s] = 1
        u, v = c * size, ((c + 1) % cliques) * size + 1
        a[u, v] = a[v, u] = 1
    return a.fill_diagonal_(0)


def walk_affinity(a, hops=4):
    step = a / a.sum(1, keepdim=True)
    visits, power = torch.zeros_like(a), torch.eye(len(a))
    for _ in range(hops):
        power = power @ step
        visits += power
    visits.fill_diagonal_(0)
    visits = visits + visits.T
    return visits / visits.sum()


def plane_affinity(y):
    nearness = 1 / (1 + torch.cdist(y, y).pow(2))
    nearness = nearness * (1 - torch.eye(len(y)))
    return nearness / nearness.sum() + 1e-9


def stress(y, p):
    return F.kl_div(plane_affinity(y), p, reduction="sum")


p = walk_affinity(ring_of_cliques())
y = (0.5 * torch.randn(len(p), 2)).requires_grad_()
optimizer = torch.optim.Adam([y], lr=0.2)
for step in range(150):
    optimizer.zero_grad()
    loss = stress(y, p)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item())

with torch.no_grad():
    q = plane_affinity(y)
    gap = torch.special.xlogy(p, p / q).sum()
print("RESULT", gap.item())
