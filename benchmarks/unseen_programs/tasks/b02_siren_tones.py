"""Classifies short audio clips of machine tones from their magnitude spectra."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)

RATE, LENGTH, CLASSES = 4000, 512, 6
CLIP = 0.02


def synth(n, gen):
    label = torch.randint(0, CLASSES, (n,), generator=gen)
    t = torch.arange(LENGTH) / RATE
    base = 180.0 + 70.0 * label.float() + 12.0 * torch.randn(n, generator=gen)
    phase = 2 * math.pi * torch.rand(n, 1, generator=gen)
    wobble = 0.5 * torch.rand(n, 1, generator=gen)
    wave = torch.sin(2 * math.pi * base[:, None] * t + phase)
    wave = wave + wobble * torch.sin(4 * math.pi * base[:, None] * t)
    wave = wave + 0.7 * torch.randn(n, LENGTH, generator=gen)
    return wave, label


def spectrum(wave):
    window = torch.hann_window(128)
    spec = torch.stft(wave, 128, hop_length=64, window=window, return_complex=True)
    return torch.log1p(spec.abs())


class ToneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(65, 48, 3, padding=1)
        self.conv2 = nn.Conv1d(48, 48, 3, padding=1)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, spec):
        h = F.relu(self.conv1(spec))
        h = F.relu(self.conv2(h))
        return self.head(h.mean(-1))


def limit(param):
    with torch.no_grad():
        param.clamp_(-CLIP, CLIP)


def attach(net):
    return [p.register_post_accumulate_grad_hook(limit) for p in net.parameters()]


@torch.no_grad()
def evaluate(net, wave, label):
    net.eval()
    logits = net(spectrum(wave))
    net.train()
    loss = F.cross_entropy(logits, label).item()
    return loss, (logits.argmax(-1) == label).float().mean().item()


gen = torch.Generator().manual_seed(31)
train_wave, train_label = synth(1200, gen)
val_wave, val_label = synth(400, gen)

net = ToneNet()
handles = attach(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)

step = 0
for epoch in range(8):
    order = torch.randperm(len(train_label), generator=gen)
    for pick in order.split(60):
        logits = net(spectrum(train_wave[pick]))
        loss = F.cross_entropy(logits, train_label[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    val_loss, val_acc = evaluate(net, val_wave, val_label)
    print(f"epoch {epoch} step {step} loss {loss.item():.3f} "
          f"val {val_loss:.3f} acc {val_acc:.3f}")

for handle in handles:
    handle.remove()
print("RESULT", evaluate(net, val_wave, val_label)[0])
