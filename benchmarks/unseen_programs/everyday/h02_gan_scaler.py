"""Train a small GAN of two-dimensional points in fp16 with one gradient scaler."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(102)

STEPS, BATCH, NOISE = 350, 128, 4


def real_points(n):
    x = torch.randn(n) * 0.8
    return torch.stack([x, 0.6 * x ** 2 - 0.4 + 0.1 * torch.randn(n)], dim=1)


def mlp(d_in, d_out, width=64):
    return nn.Sequential(nn.Linear(d_in, width), nn.LeakyReLU(0.2),
                         nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, d_out))


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean()
            - torch.cdist(b, b).mean()).item()


def grad_norm(params):
    return torch.stack([p.grad.norm() for p in params if p.grad is not None]).norm()


gen, disc = mlp(NOISE, 2), mlp(2, 1)
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.99))
opt_d = torch.optim.Adam(disc.parameters(), lr=2e-3, betas=(0.5, 0.99))
sched_g = torch.optim.lr_scheduler.LinearLR(opt_g, 1.0, 0.1, total_iters=STEPS)
sched_d = torch.optim.lr_scheduler.LinearLR(opt_d, 1.0, 0.1, total_iters=STEPS)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=150)
gen_avg = torch.optim.swa_utils.AveragedModel(
    gen, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))

for step in range(STEPS):
    scale = scaler.get_scale()
    real = real_points(BATCH)
    with torch.autocast("cpu", dtype=torch.float16):
        fake = gen(torch.randn(BATCH, NOISE))
        on_real, on_fake = disc(real), disc(fake.detach())
    loss_d = F.softplus(-on_real.float()).mean() + F.softplus(on_fake.float()).mean()
    opt_d.zero_grad()
    scaler.scale(loss_d).backward()
    # the norm is only logged; it is divided by the scale by hand, without unscale_
    norm_d = grad_norm(disc.parameters()) / scale
    scaler.step(opt_d)

    # the discriminator is a fixed critic here, its parameters collect no gradients
    for p in disc.parameters():
        p.requires_grad_(False)
    with torch.autocast("cpu", dtype=torch.float16):
        score = disc(gen(torch.randn(BATCH, NOISE)))
    loss_g = F.softplus(-score.float()).mean()
    opt_g.zero_grad()
    scaler.scale(loss_g).backward()
    for p in disc.parameters():
        p.requires_grad_(True)
    scaler.unscale_(opt_g)
    nn.utils.clip_grad_norm_(gen.parameters(), 1.0)
    scaler.step(opt_g)

    # both optimizers of the iteration share one update
    scaler.update()
    if scaler.get_scale() >= scale:
        sched_d.step()
        sched_g.step()
        gen_avg.update_parameters(gen)
    if step % 70 == 0:
        print(f"step {step} d {loss_d.item():.4f} g {loss_g.item():.4f} "
              f"norm {norm_d.item():.3f} scale {scaler.get_scale():.0f}")

with torch.no_grad():
    samples = gen_avg(torch.randn(1500, NOISE))
    print(f"RESULT {energy_distance(samples, real_points(1500)):.5f}")
