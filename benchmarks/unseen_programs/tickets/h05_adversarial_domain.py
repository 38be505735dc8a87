"""Train a domain-adversarial classifier with gradient reversal; report target-domain error."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(16)
CLASSES, DIM = 4, 20
CENTERS = 1.4 * torch.randn(CLASSES, DIM)


class ReverseLayerF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None


def domain(n, shift, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    x = CENTERS[y] + torch.randn(n, DIM, generator=gen)
    x[:, :4] += shift
    return x, y


class DANN(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(DIM, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.class_classifier = nn.Sequential(nn.Linear(h, h), nn.ReLU(), nn.Linear(h, CLASSES))
        self.domain_classifier = nn.Sequential(nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 2))

    def forward(self, x, alpha):
        f = self.feature(x)
        return self.class_classifier(f), self.domain_classifier(ReverseLayerF.apply(f, alpha))


def main(steps=240, batch=64):
    gen = torch.Generator().manual_seed(7)
    src_x, src_y = domain(800, 0.0, gen)
    tgt_x, _ = domain(800, 2.0, gen)
    val_x, val_y = domain(500, 2.0, gen)
    model = DANN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    zeros, ones = torch.zeros(batch).long(), torch.ones(batch).long()
    for step in range(steps):
        p = step / steps
        alpha = 0.3 * (2.0 / (1.0 + math.exp(-10 * p)) - 1)
        i, j = torch.randint(0, 800, (2, batch))
        class_out, domain_s = model(src_x[i], alpha)
        err_s_label = F.cross_entropy(class_out, src_y[i])
        _, domain_t = model(tgt_x[j], alpha)
        err_domain = F.cross_entropy(domain_s, zeros) + F.cross_entropy(domain_t, ones)
        optimizer.zero_grad()
        (err_s_label + err_domain).backward()
        optimizer.step()
        if step % 40 == 39:
            print(f"step {step + 1} alpha {alpha:.3f} label {err_s_label.item():.4f} "
                  f"domain {err_domain.item():.4f}")
    model.eval()
    with torch.no_grad():
        pred = model(val_x, 0.0)[0].argmax(1)
    print("RESULT", (pred != val_y).float().mean().item())


if __name__ == "__main__":
    main()
