"""Drum sound classifier in fp16 with clipped gradients and a schedule over micro-steps."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(41)

BANDS, FRAMES, DRUMS = 16, 10, 6
UPDATES, MICRO = 90, 3


def drums(n, gen):
    shape = torch.randn(DRUMS, BANDS, generator=torch.Generator().manual_seed(410))
    fall = torch.tensor([0.2, 0.5, 0.9, 0.3, 0.7, 1.2])
    y = torch.randint(0, DRUMS, (n,), generator=gen)
    t = torch.arange(FRAMES).float()
    x = shape[y][:, :, None] * torch.exp(-fall[y][:, None, None] * t)
    gain = 0.7 + 0.6 * torch.rand(n, 1, 1, generator=gen)
    return (gain * x + 0.5 * torch.randn(n, BANDS, FRAMES, generator=gen)).flatten(1), y


def build(width=48):
    return nn.Sequential(
        nn.Linear(BANDS * FRAMES, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, DRUMS)
    )


class ScaledClipper:
    """Clips to max_norm times the loss scale, so that one pass over the gradients suffices."""

    def __init__(self, params, scaler, max_norm):
        self.params, self.scaler, self.max_norm = list(params), scaler, max_norm

    def __call__(self):
        scale = self.scaler.get_scale()
        norm = nn.utils.clip_grad_norm_(self.params, self.max_norm * scale)
        return norm.item() / scale


def main():
    gen = torch.Generator().manual_seed(411)
    x, y = drums(2500, gen)
    v_x, v_y = drums(500, gen)
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # The schedule counts micro-steps: its length is UPDATES * MICRO.
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=UPDATES * MICRO)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=40)
    clip = ScaledClipper(model.parameters(), scaler, max_norm=1.0)

    def validate():
        with torch.no_grad():
            return F.cross_entropy(model(v_x), v_y).item()

    for micro in range(UPDATES * MICRO):
        pick = torch.randint(0, len(x), (24,), generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x[pick])
        loss = F.cross_entropy(logits.float(), y[pick]) / MICRO
        scaler.scale(loss).backward()
        if micro % MICRO == MICRO - 1:
            norm = clip()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
            update = micro // MICRO
            if update % 15 == 0:
                print(f"update {update} norm {norm:.3f} val {validate():.4f}")
        sched.step()
    print(f"RESULT {validate():.5f}")


if __name__ == "__main__":
    main()
