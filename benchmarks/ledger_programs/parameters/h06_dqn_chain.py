import random
from collections import deque
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
N, GAMMA = 6, 0.9


def one_hot(s):
    return F.one_hot(torch.as_tensor(s), N).float()


def env_step(s, a):
    s2 = max(s - 1, 0) if a == 0 else s + 1
    done = s2 == N - 1
    return s2, float(done), done


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(N, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, s):
        return self.net(s)


q, target = QNet(), QNet()
target.load_state_dict(q.state_dict())
target.requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=5e-3)
buf = deque(maxlen=2000)

s, t = 0, 0
for step in range(900):
    eps = max(0.2, 1 - step / 400)
    with torch.no_grad():
        a = random.randrange(2) if random.random() < eps else q(one_hot(s)).argmax().item()
    s2, r, d = env_step(s, a)
    buf.append((s, a, r, s2, d))
    s, t = (0, 0) if d or t > 30 else (s2, t + 1)
    if len(buf) < 100:
        continue
    bs, ba, br, bs2, bd = zip(*random.sample(buf, 32))
    with torch.no_grad():
        tgt = torch.tensor(br) + GAMMA * (1 - torch.tensor(bd).float()) * target(one_hot(bs2)).max(1).values
    pred = q(one_hot(bs)).gather(1, torch.tensor(ba)[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(pred, tgt)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        target.load_state_dict(q.state_dict())
    if step % 200 == 0:
        print(step, loss.item())

with torch.no_grad():
    est = q(one_hot(range(N - 1)))[:, 1]
truth = torch.tensor([GAMMA ** (N - 2 - i) for i in range(N - 1)])
print("result:", (est - truth).abs().mean().item())
