import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(23)

ENVS, ROLLOUT, UPDATES = 16, 64, 40
GAMMA, LAM, CLIP = 0.98, 0.95, 0.2


class Poles:
    """Vectorised cart-pole; a finished environment starts anew at once."""

    def __init__(self, n):
        self.s = (torch.rand(n, 4) - 0.5) * 0.1
        self.age = torch.zeros(n)

    def step(self, a):
        x, v, th, w = self.s.unbind(1)
        force = torch.where(a == 1, 10.0, -10.0)
        tmp = (force + 0.05 * w ** 2 * th.sin()) / 1.1
        acc_th = (9.8 * th.sin() - th.cos() * tmp) / (0.5 * (4 / 3 - 0.1 * th.cos() ** 2 / 1.1))
        acc = tmp - 0.05 * acc_th * th.cos() / 1.1
        self.s = torch.stack([x + 0.02 * v, v + 0.02 * acc, th + 0.02 * w, w + 0.02 * acc_th], 1)
        self.age = self.age + 1
        done = (self.s[:, 0].abs() > 2.4) | (self.s[:, 2].abs() > 0.21) | (self.age >= 200)
        length = self.age.clone()
        self.s = torch.where(done[:, None], (torch.rand(len(a), 4) - 0.5) * 0.1, self.s)
        self.age = torch.where(done, 0.0, self.age)
        return self.s, torch.ones(len(a)), done.float(), length[done]


def ortho(i, o, gain):
    layer = nn.Linear(i, o)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


actor = nn.Sequential(ortho(4, 64, 2 ** 0.5), nn.Tanh(), ortho(64, 64, 2 ** 0.5), nn.Tanh(), ortho(64, 2, 0.01))
critic = nn.Sequential(ortho(4, 64, 2 ** 0.5), nn.Tanh(), ortho(64, 64, 2 ** 0.5), nn.Tanh(), ortho(64, 1, 1.0))
everything = [*actor.parameters(), *critic.parameters()]
opt = torch.optim.Adam(everything, lr=1e-3, eps=1e-5)


@torch.no_grad()
def collect(env):
    obs, act, logp, val, rew, fin, ages = [], [], [], [], [], [], []
    s = env.s
    for _ in range(ROLLOUT):
        d = Categorical(logits=actor(s))
        a = d.sample()
        obs.append(s), act.append(a), logp.append(d.log_prob(a)), val.append(critic(s).squeeze(1))
        s, r, done, length = env.step(a)
        rew.append(r), fin.append(done), ages.append(length)
    nxt = critic(s).squeeze(1)
    adv, run = [None] * ROLLOUT, torch.zeros(ENVS)
    for t in reversed(range(ROLLOUT)):
        delta = rew[t] / 10 + GAMMA * nxt * (1 - fin[t]) - val[t]
        run = delta + GAMMA * LAM * (1 - fin[t]) * run
        adv[t], nxt = run, val[t]
    stack = [torch.stack(k).flatten(0, 1) for k in (obs, act, logp, val, adv)]
    return stack, torch.cat(ages)


env = Poles(ENVS)
for update in range(UPDATES):
    opt.param_groups[0]["lr"] = 1e-3 * (1 - update / UPDATES)
    (obs, act, old_logp, old_val, adv), ages = collect(env)
    returns = adv + old_val
    for _ in range(4):
        for mb in torch.randperm(len(obs)).split(256):
            d = Categorical(logits=actor(obs[mb]))
            ratio = (d.log_prob(act[mb]) - old_logp[mb]).exp()
            a = (adv[mb] - adv[mb].mean()) / (adv[mb].std() + 1e-8)
            pg = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
            vf = 0.5 * (critic(obs[mb]).squeeze(1) - returns[mb]).pow(2).mean()
            loss = pg + vf - 0.01 * d.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(everything, 0.5)
            opt.step()
    if update % 5 == 4 and len(ages):
        print(f"update {update} loss {loss.item():+.4f} vf {vf.item():.3f} episode length {ages.mean():.1f}")

with torch.no_grad():
    test, alive = Poles(64), torch.ones(64)
    survived = torch.zeros(64)
    for _ in range(200):
        _, _, done, _ = test.step(actor(test.s).argmax(1))
        survived += alive
        alive = alive * (1 - done)
print("RESULT", 1 - (survived / 200).mean().item())
