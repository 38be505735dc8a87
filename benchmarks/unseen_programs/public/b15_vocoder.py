"""Trains a waveform generator from mel-like features with a distributed sampler."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
torch.manual_seed(37)

HOP, FRAMES, MELS = 16, 24, 12
CONFIG = {"batch_size": 16, "train_max_epochs": 26, "lr": 2e-3, "grad_norm": 5.0,
          "distributed": True, "fft_sizes": [32, 64, 128], "log_interval_epochs": 5}


class Utterances(Dataset):
    """Harmonic tones with gliding pitch; features are log band energies of each frame."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(HOP * FRAMES).float() / (HOP * FRAMES)
        f0 = 8 + 24 * torch.rand(n, 1, generator=g)
        glide = 10 * (torch.rand(n, 1, generator=g) - 0.5)
        amps = torch.rand(n, 3, 1, generator=g) * torch.tensor([1.0, 0.6, 0.4])[None, :, None]
        phase = 6.2832 * (f0 * t + glide * t * t)
        harm = torch.stack([torch.sin(k * phase) for k in (1, 2, 3)], 1)
        self.audio = (amps * harm).sum(1) + 0.02 * torch.randn(n, HOP * FRAMES, generator=g)
        spec = torch.stft(self.audio, 46, HOP, 46, torch.hann_window(46), center=True,
                          return_complex=True).abs()[:, :, :FRAMES]
        self.mel = torch.log(spec[:, :24].reshape(n, MELS, 2, FRAMES).mean(2) + 0.05)

    def __len__(self):
        return len(self.audio)

    def __getitem__(self, i):
        return self.mel[i], self.audio[i]


class Generator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = nn.Conv1d(MELS, width, 3, padding=1)
        self.up1 = nn.ConvTranspose1d(width, width, 8, stride=4, padding=2)
        self.res1 = nn.Conv1d(width, width, 5, padding=2)
        self.up2 = nn.ConvTranspose1d(width, width // 2, 8, stride=4, padding=2)
        self.res2 = nn.Conv1d(width // 2, width // 2, 7, padding=3)
        self.out = nn.Conv1d(width // 2, 1, 7, padding=3)

    def forward(self, mel):
        h = F.leaky_relu(self.inp(mel), 0.1)
        h = F.leaky_relu(self.up1(h), 0.1)
        h = h + F.leaky_relu(self.res1(h), 0.1)
        h = F.leaky_relu(self.up2(h), 0.1)
        h = h + F.leaky_relu(self.res2(h), 0.1)
        return self.out(h).squeeze(1)


def stft_loss(pred, real, sizes):
    total = 0.0
    for n in sizes:
        w = torch.hann_window(n)
        a, b = (torch.stft(x, n, n // 4, n, w, return_complex=True).abs() + 1e-4
                for x in (pred, real))
        total = total + (b - a).norm() / b.norm() + F.l1_loss(a.log(), b.log())
    return total / len(sizes)


class Trainer:
    def __init__(self, config, loader, sampler, dev, model):
        self.config, self.loader, self.sampler, self.dev = config, loader, sampler, dev
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 12, 0.5)
        self.steps = self.epochs = 0
        self.epoch_loss = 0.0

    def _train_step(self, mel, audio):
        loss = stft_loss(self.model(mel), audio, self.config["fft_sizes"])
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config["grad_norm"])
        self.optimizer.step()
        self.epoch_loss += loss.item()
        self.steps += 1

    def _train_epoch(self):
        self.epoch_loss = 0.0
        for mel, audio in self.loader:
            self._train_step(mel, audio)
        self.scheduler.step()
        self.epochs += 1

    @torch.no_grad()
    def _eval(self):
        self.model.eval()
        loss = stft_loss(self.model(self.dev.mel), self.dev.audio, self.config["fft_sizes"]).item()
        self.model.train()
        return loss

    def run(self):
        while self.epochs < self.config["train_max_epochs"]:
            self._train_epoch()
            if self.epochs % self.config["log_interval_epochs"] == 0:
                print(f"(Steps: {self.steps}) train/loss {self.epoch_loss / len(self.loader):.4f} "
                      f"eval/loss {self._eval():.4f}")
        return self._eval()


train_set, dev_set = Utterances(31, 1), Utterances(100, 2)
sampler = DistributedSampler(train_set, num_replicas=1, rank=0, shuffle=True) \
    if CONFIG["distributed"] else None
loader = DataLoader(train_set, batch_size=CONFIG["batch_size"], shuffle=sampler is None,
                    sampler=sampler, drop_last=True)
result = Trainer(CONFIG, loader, sampler, dev_set, Generator()).run()
print("RESULT", round(result, 5))
