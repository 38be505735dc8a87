"""Two small generators and two critics, CycleGAN-like constant-then-linear learning rate."""
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)
torch.set_num_threads(1)


def net(i, o):
    return nn.Sequential(nn.Linear(i, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, o))


def dom_a(n):
    return torch.randn(n, 2) * torch.tensor([1.0, 0.3])


def dom_b(n):
    return torch.randn(n, 2) * torch.tensor([0.3, 1.0]) + torch.tensor([2.0, 0.0])


class LambdaLR:
    def __init__(self, n_epochs, offset, decay_start_epoch):
        self.n_epochs, self.offset, self.decay_start_epoch = n_epochs, offset, decay_start_epoch

    def step(self, epoch):
        return 1.0 - max(0, epoch + self.offset - self.decay_start_epoch) / (self.n_epochs - self.decay_start_epoch)


n_epochs, decay_epoch, per_epoch = 20, 10, 14
G_AB, G_BA, D_A, D_B = net(2, 2), net(2, 2), net(2, 1), net(2, 1)
optimizer_G = torch.optim.Adam(itertools.chain(G_AB.parameters(), G_BA.parameters()), lr=1e-3, betas=(0.5, 0.999))
optimizer_D_A = torch.optim.Adam(D_A.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_D_B = torch.optim.Adam(D_B.parameters(), lr=2e-3, betas=(0.5, 0.999))
schedulers = [torch.optim.lr_scheduler.LambdaLR(o, LambdaLR(n_epochs, 0, decay_epoch).step)
              for o in (optimizer_G, optimizer_D_A, optimizer_D_B)]

for epoch in range(n_epochs):
    for _ in range(per_epoch):
        a, b = dom_a(64), dom_b(64)
        fb, fa = G_AB(a), G_BA(b)
        optimizer_G.zero_grad()
        adv = (D_B(fb) - 1).pow(2).mean() + (D_A(fa) - 1).pow(2).mean()
        cyc = F.l1_loss(G_BA(fb), a) + F.l1_loss(G_AB(fa), b)
        (adv + 5 * cyc).backward()
        optimizer_G.step()
        for opt, D, real, fake in ((optimizer_D_A, D_A, a, fa), (optimizer_D_B, D_B, b, fb)):
            opt.zero_grad()
            (0.5 * ((D(real) - 1).pow(2).mean() + D(fake.detach()).pow(2).mean())).backward()
            opt.step()
    for s in schedulers:
        s.step()
    if epoch % 5 == 0:
        print(f"epoch {epoch} adv {adv.item():.3f} cyc {cyc.item():.3f}")

with torch.no_grad():
    a, b = dom_a(2000), dom_b(2000)
    gap = (G_AB(a).mean(0) - b.mean(0)).abs().sum() + F.l1_loss(G_BA(G_AB(a)), a)
print(f"result: {gap.item():.4f}")
