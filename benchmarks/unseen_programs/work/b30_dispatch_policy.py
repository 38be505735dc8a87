"""Policy gradient for dispatching jobs to free machines with an entropy bonus."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(35)

MACHINES, FEATURES = 6, 3


class Workshop:
    """Each state lists speed, queue and distance of six machines; some of them are busy."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, n):
        x = torch.rand(n, MACHINES, FEATURES, generator=self.gen)
        free = torch.rand(n, MACHINES, generator=self.gen) < 0.7
        fallback = torch.randint(0, MACHINES, (n,), generator=self.gen)
        free[torch.arange(n), fallback] = True
        return x, free

    @staticmethod
    def cost(x):
        """Hours until the job is done on each machine."""
        speed, queue, distance = x.unbind(-1)
        return (0.3 + queue) / (0.4 + speed) + 0.6 * distance ** 2


class DispatchPolicy(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, x, free):
        logits = self.score(x).squeeze(-1)
        logits = logits.masked_fill(~free, float("-inf"))
        return logits.softmax(dim=-1)


class Reinforce:
    def __init__(self, policy, lr, entropy_weight):
        self.policy, self.entropy_weight = policy, entropy_weight
        self.opt = torch.optim.Adam(policy.parameters(), lr=lr)
        self.baseline = None

    def update(self, x, free):
        probs = self.policy(x, free)
        action = torch.multinomial(probs, 1)
        cost = Workshop.cost(x).gather(1, action).squeeze(1)
        mean = cost.mean().item()
        self.baseline = mean if self.baseline is None else 0.9 * self.baseline + 0.1 * mean
        log_chosen = probs.gather(1, action).squeeze(1).log()
        entropy = -(probs * probs.log()).sum(1).mean()
        loss = ((cost - self.baseline) * log_chosen).mean() - self.entropy_weight * entropy
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.opt.step()
        return mean, entropy.item()


@torch.no_grad()
def regret(policy, x, free):
    """Mean extra hours of the most likely free machine against the best one."""
    probs = policy(x, free)
    if probs.isnan().any():
        return float("nan")
    cost = Workshop.cost(x)
    best = cost.masked_fill(~free, float("inf")).amin(1)
    chosen = cost.gather(1, probs.argmax(1, keepdim=True)).squeeze(1)
    return (chosen - best).mean().item()


def main():
    shop = Workshop(350)
    x_val, free_val = Workshop(351).sample(1000)
    policy = DispatchPolicy()
    agent = Reinforce(policy, lr=5e-3, entropy_weight=0.01)
    print(f"regret before {regret(policy, x_val, free_val):.4f}")
    for step in range(300):
        try:
            mean, entropy = agent.update(*shop.sample(64))
        except RuntimeError as error:
            print(f"stopped at step {step}: {error}")
            break
        if step % 60 == 0:
            r = regret(policy, x_val, free_val)
            print(f"step {step} cost {mean:.4f} entropy {entropy:.4f} regret {r:.4f}")
    print(f"RESULT {regret(policy, x_val, free_val):.5f}")


if __name__ == "__main__":
    main()
