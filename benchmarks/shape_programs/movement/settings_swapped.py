"""Advantage actor-critic on a batch of small corridor worlds."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(21)
SIZE, ENVS, HORIZON = 7, 48, 6
# learning rate, smoothing, stabiliser
RMS = (7e-3, 1e-5, 0.99)


class Corridor:
    """Walk left or right towards a marked end; reward for every step in its direction."""

    def __init__(self):
        self.pos = torch.randint(1, SIZE - 1, (ENVS,))
        self.goal = torch.randint(0, 2, (ENVS,)) * (SIZE - 1)

    def observe(self):
        return torch.cat([nn.functional.one_hot(self.pos, SIZE), nn.functional.one_hot(self.goal, SIZE)], 1).float()

    def act(self, move):
        before = (self.pos - self.goal).abs()
        self.pos = (self.pos + 2 * move - 1).clamp(0, SIZE - 1)
        return (before - (self.pos - self.goal).abs()).float()


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * SIZE, 32), nn.Tanh())
        self.policy, self.value = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, o):
        h = self.body(o)
        return torch.distributions.Categorical(logits=self.policy(h)), self.value(h).squeeze(1)


agent = Agent()
opt = torch.optim.RMSprop(agent.parameters(), *RMS)
history = []
for update in range(80):
    env, steps = Corridor(), []
    for _ in range(HORIZON):
        dist, value = agent(env.observe())
        move = dist.sample()
        steps.append((dist.log_prob(move), value, dist.entropy(), env.act(move)))
    history.append(sum(s[3] for s in steps).mean().item())
    ret, loss = torch.zeros(ENVS), 0.0
    for logp, value, entropy, reward in reversed(steps):
        ret = reward + 0.8 * ret
        adv = ret - value
        loss = loss + (-logp * adv.detach() + 0.5 * adv.square() - 0.01 * entropy).mean()
    opt.zero_grad()
    (loss / HORIZON).backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    opt.step()
    if update % 20 == 0:
        print(update, round(history[-1], 3))
print("RESULT", -sum(history[-10:]) / 10)
