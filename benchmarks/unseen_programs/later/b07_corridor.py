import copy
import random
from collections import deque
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(4)
random.seed(4)
N = 9
GAMMA = 0.95


class Corridor:
    """Start in the middle; left end pays 0.3, right end pays 1.0, a step costs 0.02."""

    def reset(self):
        self.s, self.t = random.randint(1, N - 2), 0
        return self.s

    def step(self, a):
        self.s += 1 if a == 1 else -1
        self.t += 1
        if self.s == 0:
            return self.s, 0.3, True
        if self.s == N - 1:
            return self.s, 1.0, True
        return self.s, -0.02, False


def enc(s):
    return nn.functional.one_hot(torch.as_tensor(s), N).float()


def truth():
    v = torch.zeros(N)
    for _ in range(100):
        for s in range(1, N - 1):
            l = 0.3 if s == 1 else -0.02 + GAMMA * v[s - 1]
            r = 1.0 if s == N - 2 else -0.02 + GAMMA * v[s + 1]
            v[s] = max(float(l), float(r))
    return v[1:-1]


q = nn.Sequential(nn.Linear(N, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(q).requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=3e-3)
memory, env = deque(maxlen=5000), Corridor()
s = env.reset()
for it in range(3000):
    eps = max(0.2, 1 - it / 1500)
    with torch.no_grad():
        a = random.randint(0, 1) if random.random() < eps else int(q(enc(s)).argmax())
    s2, r, done = env.step(a)
    memory.append((s, a, r, s2, float(done)))
    s = env.reset() if done else s2
    if it > 100:
        S, A, R, S2, D = zip(*random.sample(memory, 64))
        R, D = torch.tensor(R), torch.tensor(D)
        with torch.no_grad():
            y = R + GAMMA * target(enc(S2)).max(1).values
        pred = q(enc(S)).gather(1, torch.tensor(A)[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if it % 50 == 0:
        target.load_state_dict(q.state_dict())
with torch.no_grad():
    v = q(enc(list(range(1, N - 1)))).max(1).values
print("RESULT", (v - truth()).abs().mean().item())
