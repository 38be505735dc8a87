# Policy gradient for a one-step pricing task: the price is drawn, the reward is a black box.
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
torch.set_num_threads(1)
policy = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))
value = nn.Linear(3, 1)
opt = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=8e-3)


@torch.no_grad()
def market(context, price):
    best = 0.8 * context[:, 0] - 0.5 * context[:, 1]
    return -(price - best) ** 2


for step in range(150):
    context = torch.randn(128, 3)
    mean, log_std = policy(context).unbind(1)
    price_law = Normal(mean, log_std.clamp(-2, 1).exp())
    price = price_law.sample()
    reward = market(context, price)
    baseline = value(context)[:, 0]
    gain = reward - baseline.detach()
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    loss = -(gain * price_law.log_prob(price)).mean() + 0.5 * nn.functional.mse_loss(baseline, reward)
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    context = torch.randn(500, 3)
    print("RESULT", -market(context, policy(context)[:, 0]).mean().item())
