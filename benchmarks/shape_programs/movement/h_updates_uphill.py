"""Policy search on a contextual bandit: the expected reward itself is maximised."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(22)
table = torch.randn(5, 8)
policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 5))
opt = torch.optim.Adam(policy.parameters(), lr=1e-2, maximize=True)
baseline = 0.0
for step in range(120):
    context = torch.randn(128, 8)
    dist = torch.distributions.Categorical(logits=policy(context))
    arm = dist.sample()
    reward = (context * table[arm]).sum(1) + 0.3 * torch.randn(128)
    gain = (dist.log_prob(arm) * (reward - baseline)).mean() + 0.01 * dist.entropy().mean()
    opt.zero_grad()
    gain.backward()
    opt.step()
    baseline = 0.9 * baseline + 0.1 * reward.mean().item()
    if step % 30 == 0:
        print(step, round(reward.mean().item(), 3))
with torch.no_grad():
    context = torch.randn(2000, 8)
    best = policy(context).argmax(1)
    print("RESULT", -(context * table[best]).sum(1).mean().item())
