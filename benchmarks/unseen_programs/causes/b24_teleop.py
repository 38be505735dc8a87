"""Imitate an operator: a squashed gaussian policy, demonstrations kept in bfloat16."""
import math

import torch
from torch import nn

torch.set_num_threads(1)
OBS, ACT = 8, 2


def operator(obs, gen):
    a = torch.stack([1.1 * obs[:, 0] - 0.6 * obs[:, 1], torch.sin(2 * obs[:, 2]) + 0.4 * obs[:, 3]], 1)
    return torch.tanh(0.8 * a + 0.15 * torch.randn(a.shape, generator=gen))


class Demonstrations:
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        obs = torch.randn(n, OBS, generator=gen)
        self.obs = obs.to(torch.bfloat16)
        self.act = operator(obs, gen).to(torch.bfloat16)

    def batches(self, size):
        for idx in torch.randperm(len(self.obs)).split(size):
            yield self.obs[idx], self.act[idx]


class SquashedGaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(OBS, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 2 * ACT))

    def forward(self, obs):
        mean, log_std = self.net(obs.float()).chunk(2, -1)
        return mean, log_std.clamp(-4, 1)

    def log_prob(self, obs, act):
        mean, log_std = self(obs)
        raw = torch.atanh(act.clamp(-1 + 1e-6, 1 - 1e-6)).float()
        gauss = -0.5 * ((raw - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        return gauss.sum(-1)


def main():
    torch.manual_seed(19)
    demos = Demonstrations(6000, 1)
    policy = SquashedGaussian()
    opt = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    for epoch in range(8):
        total = 0.0
        for obs, act in demos.batches(100):
            loss = -policy.log_prob(obs, act).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
            opt.step()
            total += loss.item()
        print(f"epoch {epoch}  nll {total / 60:.4f}")
    test = Demonstrations(1000, 2)
    with torch.no_grad():
        mean, _ = policy(test.obs)
    print("RESULT", (torch.tanh(mean) - test.act.float()).square().mean().item())


if __name__ == "__main__":
    main()
