"""Fit a recurrent VAE to synthetic animal pose trajectories and report held-out error."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(19)

config = {
    "time_window": 15, "prediction_steps": 5, "num_features": 6, "zdims": 8,
    "hidden_size": 32, "batch_size": 32, "max_epochs": 20, "learning_rate": 4e-3,
    "beta": 0.05, "kl_start": 2, "annealtime": 6,
    "scheduler": False, "scheduler_step_size": 4, "scheduler_gamma": 0.5,
}


def trajectories(n, seed):
    r = np.random.default_rng(seed)
    length = config["time_window"] + config["prediction_steps"]
    t = np.arange(length) / 10.0
    x = np.zeros((n, length, config["num_features"]), np.float32)
    for i in range(n):
        kind = r.integers(3)
        speed, amp, ph = r.uniform(2, 4) * (1 + kind), r.uniform(0.6, 1.4), r.uniform(0, 6.28)
        for f in range(config["num_features"]):
            shift = f * (0.5, 1.05, 2.1)[kind]
            x[i, :, f] = amp * np.sin(speed * t + ph + shift) + 0.2 * (kind - 1) * np.cos(f)
        x[i] += r.normal(0, 0.08, x[i].shape)
    return torch.from_numpy(x)


class RnnVAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        h, z, f = cfg["hidden_size"], cfg["zdims"], cfg["num_features"]
        self.encoder = nn.GRU(f, h, batch_first=True, bidirectional=True)
        self.mean, self.logvar = nn.Linear(2 * h, z), nn.Linear(2 * h, z)
        self.decoder, self.rec_out = nn.GRU(z, h, batch_first=True), nn.Linear(h, f)
        self.future, self.fut_out = nn.GRU(z, h, batch_first=True), nn.Linear(h, f)

    def forward(self, x, n_future):
        _, hidden = self.encoder(x)
        hidden = torch.cat([hidden[0], hidden[1]], 1)
        mu, logvar = self.mean(hidden), self.logvar(hidden)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        rec = self.rec_out(self.decoder(z[:, None].expand(-1, x.shape[1], -1))[0])
        fut = self.fut_out(self.future(z[:, None].expand(-1, n_future, -1))[0])
        return rec, fut, mu, logvar


def kl_annealing(epoch, kl_start, annealtime):
    return min(1.0, (epoch - kl_start) / annealtime) if epoch > kl_start else 0.0


def run_epoch(loader, model, cfg, weight, optimizer=None):
    model.train(optimizer is not None)
    total = 0.0
    with torch.set_grad_enabled(optimizer is not None):
        for (x,) in loader:
            past, future = x[:, :cfg["time_window"]], x[:, cfg["time_window"]:]
            rec, fut, mu, logvar = model(past, cfg["prediction_steps"])
            kl = -0.5 * torch.mean(1 + logvar - mu ** 2 - logvar.exp())
            fit = F.mse_loss(rec, past) + F.mse_loss(fut, future)
            if optimizer is not None:
                loss = fit + cfg["beta"] * weight * kl
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5)
                optimizer.step()
            total += fit.item() * len(x)
    return total / len(loader.dataset)


def train_model(cfg):
    train_loader = DataLoader(TensorDataset(trajectories(256, 0)), cfg["batch_size"], shuffle=True)
    test_loader = DataLoader(TensorDataset(trajectories(100, 1)), 100)
    model = RnnVAE(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["learning_rate"], amsgrad=True)
    if cfg["scheduler"]:
        scheduler = StepLR(optimizer, cfg["scheduler_step_size"], gamma=cfg["scheduler_gamma"])
    else:
        scheduler = StepLR(optimizer, cfg["scheduler_step_size"], gamma=0)

    best = float("inf")
    for epoch in range(1, cfg["max_epochs"] + 1):
        weight = kl_annealing(epoch, cfg["kl_start"], cfg["annealtime"])
        train_loss = run_epoch(train_loader, model, cfg, weight, optimizer)
        current = run_epoch(test_loader, model, cfg, weight)
        scheduler.step()
        best = min(best, current)
        if epoch % 3 == 0:
            print(f"Epoch {epoch} train {train_loss:.4f} test {current:.4f} kl_weight {weight:.2f}")
    return best


if __name__ == "__main__":
    print("RESULT", train_model(config))
