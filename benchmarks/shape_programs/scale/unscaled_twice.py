"""Advantage actor-critic on a contextual bandit; both optimizers also train the common trunk."""
import torch
from torch import nn

torch.manual_seed(23)
torch.set_num_threads(1)
ARMS = 5


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 10), nn.Tanh())
        self.actor, self.critic = nn.Linear(10, ARMS), nn.Linear(10, 1)

    def forward(self, s):
        z = self.trunk(s)
        return self.actor(z), self.critic(z).squeeze(-1)


g = torch.Generator().manual_seed(5)
A, B = 0.6 * torch.randn(8, 6, generator=g), torch.randn(6, ARMS, generator=g)


def reward(s, arm):
    return (torch.sin(s @ A) @ B).gather(1, arm[:, None]).squeeze(1) / 2


agent = Agent()
common = list(agent.trunk.parameters())
opts = [
    torch.optim.SGD([*common, *agent.actor.parameters()], lr=0.2, momentum=0.9),
    torch.optim.SGD([*common, *agent.critic.parameters()], lr=0.2, momentum=0.9),
]
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
for step in range(150):
    s = torch.randn(256, 8)
    with torch.autocast("cpu", torch.float16):
        logits, value = agent(s)
    policy = torch.distributions.Categorical(logits=logits.float())
    arm = policy.sample()
    r = reward(s, arm)
    gain = r - value.float()
    loss = -(policy.log_prob(arm) * gain.detach()).mean() + 0.3 * gain.pow(2).mean() - 0.01 * policy.entropy().mean()
    agent.zero_grad()
    scaler.scale(loss).backward()
    for o in opts:
        scaler.unscale_(o)
        nn.utils.clip_grad_norm_(o.param_groups[0]["params"], 2.0)
    for o in opts:
        scaler.step(o)
    scaler.update()

with torch.no_grad():
    s = torch.randn(2000, 8)
    best = (torch.sin(s @ A) @ B / 2).max(1).values
    print("RESULT", float((best - reward(s, agent(s)[0].argmax(1))).mean()))
