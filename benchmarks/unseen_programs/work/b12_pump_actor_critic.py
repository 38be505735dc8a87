"""Actor-critic for a one-step pump control task, fp16 with a gradient scaler per network."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)


@dataclass
class Settings:
    steps: int = 300
    batch: int = 64
    width: int = 40
    actor_lr: float = 0.05
    critic_lr: float = 0.05
    speeds: int = 5
    states: int = 6


class PumpStation:
    """State: level, inflow, price, and three weather readings. Action: one of five speeds."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def observe(self, n):
        return torch.rand(n, 6, generator=self.gen) * 2 - 1

    def expected_reward(self, s, speed):
        wanted = 2 + 1.5 * s[:, 0] + 1.2 * torch.tanh(2 * s[:, 1]) - 0.8 * s[:, 2]
        return 1 - 0.4 * (speed.float() - wanted).abs() + 0.5 * s[:, 3]

    def reward(self, s, speed):
        noise = 0.1 * torch.randn(len(s), generator=self.gen)
        return self.expected_reward(s, speed) + noise


def mlp(n_in, width, n_out):
    return nn.Sequential(
        nn.Linear(n_in, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, n_out),
    )


class Agent:
    def __init__(self, cfg):
        self.cfg = cfg
        self.actor = mlp(cfg.states, cfg.width, cfg.speeds)
        self.critic = mlp(cfg.states, cfg.width, 1)
        self.actor_opt = torch.optim.SGD(self.actor.parameters(), cfg.actor_lr, momentum=0.9)
        self.critic_opt = torch.optim.SGD(self.critic.parameters(), cfg.critic_lr, momentum=0.9)
        self.actor_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        self.critic_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def warm_up_critic(self, env, steps=20):
        for _ in range(steps):
            s = env.observe(self.cfg.batch)
            speed = torch.randint(0, self.cfg.speeds, (len(s),))
            with torch.autocast("cpu", dtype=torch.float16):
                value = self.critic(s).squeeze(-1)
            loss = F.mse_loss(value.float(), env.reward(s, speed))
            self.critic_opt.zero_grad()
            self.critic_scaler.scale(loss).backward()
            self.critic_scaler.step(self.critic_opt)
            self.critic_scaler.update()

    def update(self, env):
        s = env.observe(self.cfg.batch)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.actor(s)
            value = self.critic(s).squeeze(-1)
        dist = torch.distributions.Categorical(logits=logits.float())
        action = dist.sample()
        r = env.reward(s, action)
        advantage = (r - value.float()).detach()
        actor_loss = -(dist.log_prob(action) * advantage).mean() - 0.01 * dist.entropy().mean()
        critic_loss = F.mse_loss(value.float(), r)

        self.actor_opt.zero_grad()
        self.critic_opt.zero_grad()
        self.actor_scaler.scale(actor_loss + critic_loss).backward()
        self.actor_scaler.step(self.actor_opt)
        self.critic_scaler.step(self.critic_opt)
        self.actor_scaler.update()
        self.critic_scaler.update()
        return r.mean().item(), critic_loss.item()

    @torch.no_grad()
    def value_error(self, env, n=1000):
        s = env.observe(n)
        probs = self.actor(s).softmax(-1)
        per_speed = torch.stack(
            [env.expected_reward(s, torch.full((n,), a)) for a in range(self.cfg.speeds)], 1
        )
        true_value = (probs * per_speed).sum(1)
        return (self.critic(s).squeeze(-1) - true_value).pow(2).mean().item()


def main():
    cfg = Settings()
    env, test_env = PumpStation(1), PumpStation(2)
    agent = Agent(cfg)
    agent.warm_up_critic(env)
    for step in range(cfg.steps):
        reward, loss = agent.update(env)
        if step % 60 == 0:
            print(f"step {step} reward {reward:.3f} critic loss {loss:.4f}")
    print(f"RESULT {agent.value_error(test_env):.5f}")


if __name__ == "__main__":
    main()
