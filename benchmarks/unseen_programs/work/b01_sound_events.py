"""Train a two-task network for sound events and pitch on mel frames in mixed precision."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)

N_MELS, N_FRAMES, N_EVENTS = 40, 16, 6


def make_clips(n, gen):
    event = torch.randint(0, N_EVENTS, (n,), generator=gen)
    pitch = torch.rand(n, generator=gen)
    mel = torch.arange(N_MELS).float()
    frame = torch.arange(N_FRAMES).float()
    centre = 4 + pitch * 30
    bump = torch.exp(-0.5 * ((mel[None] - centre[:, None]) / 1.5) ** 2)
    rate = (event + 1).float() / (N_EVENTS + 1)
    envelope = 0.5 + 0.5 * torch.sin(2 * math.pi * rate[:, None] * frame[None] / 3)
    clips = envelope[:, :, None] * bump[:, None, :] * 3
    clips = clips + 0.4 * torch.randn(clips.shape, generator=gen)
    return clips, event, pitch


class SoundNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(N_MELS, width), nn.ReLU(), nn.Linear(width, 24), nn.ReLU()
        )
        self.mix = nn.Linear(24 * N_FRAMES, width)
        self.event_head = nn.Linear(width, N_EVENTS)
        self.pitch_head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, clips):
        h = self.trunk(clips).flatten(1)
        h = F.relu(self.mix(h))
        return self.event_head(h), self.pitch_head(h).squeeze(-1)


def grad_norm(module):
    return torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm()


def evaluate(model, clips, event, pitch):
    model.eval()
    with torch.no_grad():
        logits, p = model(clips)
        ce = F.cross_entropy(logits, event).item()
        mae = (p - pitch).abs().mean().item()
    model.train()
    return ce, mae


def main():
    gen = torch.Generator().manual_seed(5)
    clips, event, pitch = make_clips(2048, gen)
    v_clips, v_event, v_pitch = make_clips(512, gen)
    model = SoundNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    steps = 240
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for step in range(steps):
        pick = torch.randint(0, len(clips), (48,), generator=gen)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits, p = model(clips[pick])
        event_loss = F.cross_entropy(logits.float(), event[pick])
        pitch_loss = 3 * F.smooth_l1_loss(p.float(), pitch[pick], beta=0.2)
        scaler.scale(event_loss).backward(retain_graph=True)
        event_norm = grad_norm(model.trunk) / scaler.get_scale()
        pitch_loss.backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 60 == 0:
            ce, mae = evaluate(model, v_clips, v_event, v_pitch)
            print(
                f"step {step:3d} event {event_loss.item():.3f} pitch {pitch_loss.item():.3f}"
                f" trunk norm (event) {event_norm.item():.3f} val ce {ce:.3f} mae {mae:.3f}"
            )
    ce, mae = evaluate(model, v_clips, v_event, v_pitch)
    print(f"final: event cross entropy {ce:.4f}, pitch error {mae:.4f}")
    print(f"RESULT {ce + 5 * mae:.5f}")


if __name__ == "__main__":
    main()
