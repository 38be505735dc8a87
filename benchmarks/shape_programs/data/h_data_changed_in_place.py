import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(5)


class Pool:
    """A ring of the last transitions of a swinging mass; old ones are overwritten."""

    def __init__(self, room):
        self.now = torch.zeros(room, 3)
        self.after = torch.zeros(room, 2)
        self.at, self.full, self.room = 0, 0, room

    def push(self, now, after):
        n = len(now)
        where = (self.at + torch.arange(n)) % self.room
        self.now[where] = now
        self.after[where] = after
        self.at = (self.at + n) % self.room
        self.full = min(self.room, self.full + n)

    def draw(self, n):
        pick = torch.randint(self.full, (n,))
        return self.now[pick], self.after[pick]


def world(state, force):
    place, speed = state.unbind(1)
    speed = speed + 0.2 * (force - torch.sin(place))
    return torch.stack([place + 0.2 * speed, speed], 1)


state = torch.randn(32, 2)
pool = Pool(640)
model = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
for step in range(120):
    force = torch.randn(32)
    after = world(state, force)
    pool.push(torch.cat([state, force[:, None]], 1), after)
    state.copy_(after)
    lost = state.abs().amax(1) > 3
    state[lost] = torch.randn(int(lost.sum()), 2)
    now, target = pool.draw(64)
    loss = (now[:, :2] + model(now) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f}")

start, force = torch.randn(300, 2), torch.randn(300)
with torch.no_grad():
    guess = start + model(torch.cat([start, force[:, None]], 1))
print("RESULT", (guess - world(start, force)).square().mean().item())
