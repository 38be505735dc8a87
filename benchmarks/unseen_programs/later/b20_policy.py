import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(43)
GAMMA, T, B = 0.9, 12, 64


def rollout(policy, n):
    """Carry a key: action 2 at position p picks the key, later action 1 opens the door, costs in between."""
    has = torch.zeros(n)
    logps, rewards, states = [], [], []
    for t in range(T):
        cue = torch.randint(0, 3, (n,))
        obs = torch.cat([nn.functional.one_hot(cue, 3).float(), has[:, None], torch.full((n, 1), t / T)], 1)
        dist = torch.distributions.Categorical(logits=policy(obs))
        a = dist.sample()
        r = (a == cue).float() * (1 - has) * 0.1
        opened = has * (a == 1).float()
        r = r + opened
        take = (a == 2).float() * (1 - has)
        r = r - 0.5 * take
        has = torch.clamp(has + take, max=1) * (1 - opened)
        logps.append(dist.log_prob(a))
        rewards.append(r)
    return logps, rewards


def discounted(rewards):
    out, running = [], torch.zeros_like(rewards[0])
    for r in reversed(rewards):
        running = r + GAMMA * running
        out.append(running)
    return out


policy = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 3))
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
for it in range(250):
    logps, rewards = rollout(policy, B)
    g = torch.stack(discounted(rewards))
    adv = (g - g.mean(1, keepdim=True)) / (g.std() + 1e-6)
    loss = -(torch.stack(logps) * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(it, f"{torch.stack(rewards).sum(0).mean().item():.3f}")
with torch.no_grad():
    _, rewards = rollout(policy, 500)
print("RESULT", -torch.stack(rewards).sum(0).mean().item())
