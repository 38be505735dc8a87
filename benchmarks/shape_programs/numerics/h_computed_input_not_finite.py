"""Group-relative policy gradient; groups in which all answers score alike carry no signal."""
import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)
GROUP, ACTIONS, DIM = 6, 5, 8
rule = torch.randn(DIM, ACTIONS)


def questions(n):
    x = torch.randn(n, DIM)
    return x, (x @ rule).argmax(1)


@torch.no_grad()
def relative(reward):
    groups = reward.view(-1, GROUP)
    spread, centre = torch.std_mean(groups, dim=1, keepdim=True)
    score = (groups - centre) / spread
    return torch.where(spread > 0, score, torch.zeros_like(score)).flatten()


policy = nn.Sequential(nn.Linear(DIM, 64), nn.Tanh(), nn.Linear(64, ACTIONS))
opt = torch.optim.Adam(policy.parameters(), lr=5e-3)
for it in range(140):
    x, answer = questions(64)
    logp = torch.log_softmax(policy(x), 1).repeat_interleave(GROUP, 0)
    action = torch.multinomial(logp.detach().exp(), 1)
    reward = (action.squeeze(1) == answer.repeat_interleave(GROUP)).float()
    advantage = relative(reward)
    loss = -(logp.gather(1, action).squeeze(1) * advantage).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(it, "reward", reward.mean().item())
x, answer = questions(2000)
with torch.no_grad():
    probs = policy(x).softmax(1).gather(1, answer[:, None])
print("RESULT", 1.0 - probs.mean().item())
