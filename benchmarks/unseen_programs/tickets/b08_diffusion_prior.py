"""Train a diffusion prior from caption embeddings to image embeddings, evaluated with its EMA."""
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(41)
DIM, STEPS = 16, 100


def paired_embeddings(n, mixer, gen):
    text = F.normalize(torch.randn(n, DIM, generator=gen), dim=-1)
    image = torch.tanh(text @ mixer * 2.5) + 0.15 * torch.randn(n, DIM, generator=gen)
    return text, F.normalize(image, dim=-1) * math.sqrt(DIM)


class PriorNetwork(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.inp = nn.Linear(2 * DIM, hidden)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.SiLU(),
                           nn.Linear(hidden, hidden)) for _ in range(3)])
        self.out = nn.Linear(hidden, DIM)

    def forward(self, x, t, text):
        freq = 2.0 ** torch.arange(4)
        ang = (t.float() / STEPS)[:, None] * freq * math.pi
        h = self.inp(torch.cat([x, text], -1)) + self.time(torch.cat([ang.sin(), ang.cos()], -1))
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


class DiffusionPrior(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = PriorNetwork()
        s = torch.linspace(0, 1, STEPS + 1)
        acp = torch.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2
        self.register_buffer("acp", (acp / acp[0])[1:].clamp(1e-4, 0.9999))

    def forward(self, text, image):
        t = torch.randint(0, STEPS, (len(text),))
        a = self.acp[t][:, None]
        noised = a.sqrt() * image + (1 - a).sqrt() * torch.randn_like(image)
        return F.mse_loss(self.net(noised, t, text), image)

    @torch.no_grad()
    def sample(self, text, steps=20):
        x = torch.randn(len(text), DIM)
        ts = torch.linspace(STEPS - 1, 0, steps).long()
        for i, t in enumerate(ts):
            x0 = self.net(x, t.expand(len(text)), text)
            if i + 1 == steps:
                return x0
            eps = (x - self.acp[t].sqrt() * x0) / (1 - self.acp[t]).sqrt()
            nxt = self.acp[ts[i + 1]]
            x = nxt.sqrt() * x0 + (1 - nxt).sqrt() * eps


class EMA(nn.Module):
    def __init__(self, model, beta=0.998, update_after_step=100, update_every=2):
        super().__init__()
        self.online_model, self.ema_model = model, copy.deepcopy(model)
        self.beta, self.update_every = beta, update_every
        self.update_after_step = update_after_step // update_every
        self.register_buffer("initted", torch.tensor([False]))
        self.register_buffer("step", torch.tensor([0]))

    def copy_params_from_model_to_ema(self):
        self.ema_model.state_dict = self.online_model.state_dict

    def update(self):
        self.step += 1
        if self.step % self.update_every != 0 or self.step <= self.update_after_step:
            return
        if not self.initted:
            self.copy_params_from_model_to_ema()
            self.initted.fill_(True)
        with torch.no_grad():
            for ma, cur in zip(self.ema_model.parameters(), self.online_model.parameters()):
                ma.lerp_(cur, 1 - self.beta)


class DiffusionPriorTrainer:
    def __init__(self, prior, lr=2e-3, wd=1e-2, max_grad_norm=1.0):
        self.prior, self.max_grad_norm = prior, max_grad_norm
        self.optimizer = torch.optim.AdamW(prior.parameters(), lr=lr, weight_decay=wd, eps=1e-6)
        self.ema = EMA(prior)

    def update(self, text, image):
        loss = self.prior(text, image)
        loss.backward()
        nn.utils.clip_grad_norm_(self.prior.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.update()
        return loss.item()


def main():
    gen = torch.Generator().manual_seed(2)
    mixer = torch.randn(DIM, DIM, generator=gen)
    text, image = paired_embeddings(4000, mixer, gen)
    vtext, vimage = paired_embeddings(400, mixer, gen)
    trainer = DiffusionPriorTrainer(DiffusionPrior())
    for step in range(1, 401):
        idx = torch.randint(0, len(text), (128,))
        loss = trainer.update(text[idx], image[idx])
        if step % 80 == 0:
            sim = F.cosine_similarity(trainer.ema.ema_model.sample(vtext), vimage).mean()
            print(f"step {step} loss {loss:.4f} text->image similarity {sim:.4f}")
    sampled = trainer.ema.ema_model.sample(vtext)
    print("RESULT", 1 - F.cosine_similarity(sampled, vimage).mean().item())


if __name__ == "__main__":
    main()
