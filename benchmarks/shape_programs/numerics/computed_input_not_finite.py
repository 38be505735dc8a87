"""Group-relative policy gradient on a contextual bandit: eight answers per question."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
GROUP, ACTIONS, DIM = 8, 6, 10
rule = torch.randn(DIM, ACTIONS)


def questions(n):
    x = torch.randn(n, DIM)
    return x, (x @ rule).argmax(1)


@torch.no_grad()
def roll_out(policy, x, answer):
    logits = policy(x).repeat_interleave(GROUP, 0)
    gumbel = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)))
    action = (logits + gumbel).argmax(1)
    reward = (action == answer.repeat_interleave(GROUP)).float()
    return action, reward


@torch.no_grad()
def relative(reward):
    groups = reward.view(-1, GROUP)
    spread, centre = torch.std_mean(groups, dim=1, keepdim=True)
    return ((groups - centre) / spread).flatten()


policy = nn.Sequential(nn.Linear(DIM, 64), nn.Tanh(), nn.Linear(64, ACTIONS))
opt = torch.optim.Adam(policy.parameters(), lr=5e-3)
for it in range(150):
    x, answer = questions(48)
    action, reward = roll_out(policy, x, answer)
    advantage = relative(reward)
    logp = torch.log_softmax(policy(x), 1).repeat_interleave(GROUP, 0)
    loss = -(logp.gather(1, action[:, None]).squeeze(1) * advantage).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(it, "reward", reward.mean().item())
x, answer = questions(2000)
with torch.no_grad():
    probs = policy(x).softmax(1).gather(1, answer[:, None])
print("RESULT", 1.0 - probs.mean().item())
