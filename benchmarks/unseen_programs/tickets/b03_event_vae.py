"""Fit a variational next-event model (waiting time and readings) on sequences of marked events."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(23)
MARKS, PAD, OBS = 5, 5, 5
LOADING = torch.tensor([[1.2, 0.8, -0.9, 0.0, 0.6], [0.0, 0.7, 0.5, 1.1, -0.8]])


def simulate(n, gen, max_len=20):
    seqs = []
    for _ in range(n):
        length = int(torch.randint(10, max_len + 1, (1,), generator=gen))
        factor = torch.randn(length, 2, generator=gen)
        marks = torch.cumsum(torch.randint(1, 3, (length,), generator=gen), 0) % MARKS
        readings = factor @ LOADING + 0.3 * F.pad(marks[:-1], (1, 0))[:, None]
        seqs.append((marks, readings + 0.2 * torch.randn(length, OBS, generator=gen)))
    return seqs


def collate(seqs):
    L = max(len(m) for m, _ in seqs)
    marks = torch.full((len(seqs), L), PAD)
    obs = torch.zeros(len(seqs), L, OBS)
    for i, (m, o) in enumerate(seqs):
        marks[i, :len(m)], obs[i, :len(o)] = m, o
    return marks, obs, (marks != PAD).float()


class History(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.emb = nn.Embedding(MARKS + 1, 8)
        self.rnn = nn.GRU(8 + OBS, hidden, batch_first=True)

    def forward(self, marks, obs):
        h, _ = self.rnn(torch.cat([self.emb(marks), obs], -1))
        return F.pad(h, (0, 0, 1, 0))[:, :-1]


class VaeDecoder(nn.Module):
    def __init__(self, hidden=32, latent=3):
        super().__init__()
        self.history = History(hidden)
        self.enc = nn.Sequential(nn.Linear(hidden + OBS, 48), nn.Tanh(), nn.Linear(48, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(hidden + latent, 48), nn.Tanh(), nn.Linear(48, OBS))
        self.log_scale = nn.Parameter(torch.zeros(OBS))

    def posterior(self, h, obs):
        return self.enc(torch.cat([h, obs], -1)).chunk(2, -1)

    def log_likelihood(self, h, z, obs):
        loc, s = self.dec(torch.cat([h, z], -1)), self.log_scale.clamp(-4, 3)
        ll = -0.5 * ((obs - loc) / s.exp()) ** 2 - s - 0.5 * math.log(2 * math.pi)
        return ll.sum(-1)

    def loss(self, marks, obs, seq_onehots):
        h = self.history(marks, obs)
        mean, log_var = self.posterior(h, obs)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        recon_loss = -self.log_likelihood(h, z, obs) * seq_onehots
        kl_loss = (-0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())) * seq_onehots
        events = seq_onehots.sum()
        total = (recon_loss + kl_loss).sum() / events
        return total, (recon_loss.sum() / events).item(), (kl_loss.sum() / events).item()

    @torch.no_grad()
    def nll(self, marks, obs, mask, samples=32):
        h = self.history(marks, obs)
        mean, log_var = self.posterior(h, obs)
        logw = []
        for _ in range(samples):
            eps = torch.randn_like(mean)
            z = mean + eps * (0.5 * log_var).exp()
            log_q = (-0.5 * eps ** 2 - 0.5 * log_var).sum(-1)
            logw.append(self.log_likelihood(h, z, obs) - (0.5 * z ** 2).sum(-1) - log_q)
        ll = torch.logsumexp(torch.stack(logw), 0) - math.log(samples)
        return float(-(ll * mask).sum() / mask.sum())


def main():
    gen = torch.Generator().manual_seed(3)
    train, val = simulate(320, gen), collate(simulate(80, gen))
    model = VaeDecoder()
    opt = torch.optim.Adam(model.parameters(), lr=8e-3)
    for epoch in range(14):
        order = torch.randperm(len(train))
        for i in range(0, len(train), 32):
            batch = collate([train[j] for j in order[i:i + 32].tolist()])
            loss, recon, kl = model.loss(*batch)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
        if epoch % 3 == 1:
            print(f"epoch {epoch + 1} recon {recon:.4f} kl {kl:.4f} val_nll {model.nll(*val):.4f}")
    print("RESULT", model.nll(*val))


if __name__ == "__main__":
    main()
