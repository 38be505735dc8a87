"""Value of a random process (a tank level with noisy inflow) from imagined rollouts and mixed returns."""
import torch
from torch import nn

torch.set_num_threads(1)
GAMMA, LAM, HORIZON, STATES = 0.9, 0.3, 6, 25


def build_process(seed):
    g = torch.Generator().manual_seed(seed)
    P = torch.zeros(STATES, STATES)
    for s in range(STATES):
        for d, w in ((-4, 0.2), (-1, 0.25), (0, 0.1), (2, 0.25), (5, 0.2)):
            P[s, (s + d) % STATES] += w
    reward = torch.randn(STATES, generator=g)
    reward = reward + 2 * torch.sin(torch.arange(STATES) / STATES * 6.283)
    value = torch.linalg.solve(torch.eye(STATES) - GAMMA * P, reward)
    return P, reward, value


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(STATES, 32)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ELU(), nn.Linear(64, 1))

    def forward(self, s):
        return self.net(self.embed(s)).squeeze(-1)


def rollout(P, reward, n):
    s = torch.randint(0, STATES, (n,))
    states, rewards = [s], []
    for _ in range(HORIZON):
        rewards.append(reward[s])
        s = torch.multinomial(P[s], 1).squeeze(1)
        states.append(s)
    return torch.stack(states), torch.stack(rewards)


def mixed_returns(rewards, values):
    last = values[-1]
    out = []
    for t in reversed(range(len(rewards))):
        last = rewards[t] + GAMMA * ((1 - LAM) * values[t + 1] + LAM * last)
        out.append(last)
    return torch.stack(out[::-1])


def critic_loss(critic, states, rewards):
    values = critic(states)
    returns = mixed_returns(rewards, values)
    return 0.5 * (returns - values[:-1]).pow(2).mean()


def main():
    torch.manual_seed(0)
    P, reward, true_value = build_process(7)
    critic = Critic()
    opt = torch.optim.Adam(critic.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, 2500)
    every = torch.arange(STATES)
    for step in range(2500):
        states, rewards = rollout(P, reward, 64)
        loss = critic_loss(critic, states, rewards)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 10.0)
        opt.step()
        sched.step()
        if step % 500 == 0:
            with torch.no_grad():
                rmse = (critic(every) - true_value).pow(2).mean().sqrt()
            print(f"{step} loss {loss.item():.3f} rmse {rmse:.3f}")
    with torch.no_grad():
        rmse = (critic(every) - true_value).pow(2).mean().sqrt()
    print("RESULT", rmse.item())


main()
