"""Expected SARSA on a noisy ring with a slow copy of the network."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
N, ACTIONS, GAMMA = 10, 3, 0.8
reward = torch.randn(N)
MOVES = torch.tensor([-1, 0, 1])


def env_step(s, a, gen):
    noise = torch.randint(0, 2, s.shape, generator=gen)
    nxt = (s + MOVES[a] + noise) % N
    return nxt, reward[nxt]


def exact_q():
    q = torch.zeros(N, ACTIONS)
    for _ in range(200):
        v = q.mean(1)
        new = torch.zeros_like(q)
        for a in range(ACTIONS):
            for n in (0, 1):
                nxt = (torch.arange(N) + MOVES[a] + n) % N
                new[:, a] += 0.5 * (reward[nxt] + GAMMA * v[nxt])
        q = new
    return q


net = nn.Sequential(nn.Embedding(N, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, ACTIONS))
slow = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
gen = torch.Generator().manual_seed(1)

for it in range(150):
    s = torch.randint(0, N, (256,), generator=gen)
    a = torch.randint(0, ACTIONS, (256,), generator=gen)
    nxt, r = env_step(s, a, gen)
    goal = r + GAMMA * slow(nxt).mean(1)
    q = net(s).gather(1, a[:, None]).squeeze(1)
    loss = F.mse_loss(q, goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    for p, ps in zip(net.parameters(), slow.parameters()):
        ps.lerp_(p.detach(), 0.1)
    if it % 50 == 0:
        print(it, loss.item())

with torch.no_grad():
    err = (net(torch.arange(N)) - exact_q()).pow(2).mean()
print("RESULT", float(err))
