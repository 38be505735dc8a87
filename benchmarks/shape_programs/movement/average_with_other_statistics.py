"""Tone classification of raw audio; the exported network uses smoothed weights."""
import torch
from torch import nn
from torch.func import functional_call

torch.set_num_threads(1)


def make_clips(n, seed):
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 4, (n,), generator=g)
    t = torch.arange(128) / 128
    freq = torch.tensor([4.0, 7.0, 11.0, 16.0])[kind][:, None]
    phase = torch.rand(n, 1, generator=g) * 6.28
    wave = 6 * torch.sin(6.28 * freq * t + phase) + 3 + 2 * torch.randn(n, 128, generator=g)
    return wave[:, None], kind


def build():
    return nn.Sequential(
        nn.Conv1d(1, 12, 9, stride=2), nn.BatchNorm1d(12), nn.ReLU(),
        nn.Conv1d(12, 16, 7, stride=2), nn.BatchNorm1d(16), nn.ReLU(),
        nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(32, 4))


class Exporter:
    def __init__(self, decay):
        self.decay, self.shell, self.smooth = decay, build().eval(), None

    @torch.no_grad()
    def track(self, net):
        now = {k: v.detach().clone() for k, v in net.named_parameters()}
        if self.smooth is None:
            self.smooth = now
            return
        for k, v in now.items():
            self.smooth[k] = self.decay * self.smooth[k] + (1 - self.decay) * v

    @torch.no_grad()
    def predict(self, net, clips):
        return functional_call(self.shell, self.smooth, (clips,))


torch.manual_seed(1)
clips, kinds = make_clips(600, 1)
val_clips, val_kinds = make_clips(200, 2)
net, export = build(), Exporter(0.9)
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(90):
    pick = torch.randperm(600)[:48]
    loss = nn.functional.cross_entropy(net(clips[pick]), kinds[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
    export.track(net)
    if step % 30 == 29:
        print("step", step + 1, "train loss", round(loss.item(), 4))
logits = export.predict(net, val_clips)
print("RESULT", nn.functional.cross_entropy(logits, val_kinds).item())
