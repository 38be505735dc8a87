"""Concrete autoencoder in bf16: choose a few genes from which the others can be rebuilt."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(10)

GENES, PROGRAMS, CHOSEN = 60, 6, 8


def expression(n, loadings, gen):
    activity = torch.randn(n, PROGRAMS, generator=gen)
    x = activity @ loadings
    return x + 0.3 * torch.randn(n, GENES, generator=gen)


class ConcreteSelector(nn.Module):
    """Soft one-hot choices whose temperature falls with the number of training batches seen."""

    def __init__(self, n_in, n_out, t_start=8.0, t_end=0.05, anneal=1000):
        super().__init__()
        self.logits = nn.Parameter(0.01 * torch.randn(n_out, n_in))
        self.t_start, self.t_end, self.anneal = t_start, t_end, anneal
        self.register_buffer("seen", torch.zeros(()))

    def temperature(self):
        done = min(1.0, self.seen.item() / self.anneal)
        return self.t_start * (self.t_end / self.t_start) ** done

    def forward(self, x):
        if self.training:
            self.seen += 1
            u = torch.rand(self.logits.shape).clamp(1e-6, 1 - 1e-6)
            noise = -(-u.log()).log()
            w = ((self.logits.float() + noise) / self.temperature()).softmax(-1)
        else:
            w = F.one_hot(self.logits.argmax(-1), self.logits.shape[1]).float()
        return x @ w.to(x.dtype).T


class GeneAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.select = ConcreteSelector(GENES, CHOSEN)
        self.decode = nn.Sequential(
            nn.Linear(CHOSEN, 64), nn.LeakyReLU(0.2), nn.Linear(64, GENES)
        )

    def forward(self, x):
        return self.decode(self.select(x))


def parameter_groups(model):
    return [
        {"params": model.select.parameters(), "lr": 2e-2},
        {"params": model.decode.parameters(), "lr": 3e-3},
    ]


def main():
    gen = torch.Generator().manual_seed(101)
    loadings = torch.randn(PROGRAMS, GENES, generator=gen)
    loadings *= (torch.rand(PROGRAMS, GENES, generator=gen) < 0.4).float()
    train, val = expression(4000, loadings, gen), expression(500, loadings, gen)
    scale = train.std(0)
    train = (train / scale).to(torch.bfloat16)
    val = (val / scale).to(torch.bfloat16)

    model = GeneAutoencoder().to(torch.bfloat16)
    opt = torch.optim.Adam(parameter_groups(model), eps=1e-6)
    accumulate, steps = 3, 390
    for step in range(steps):
        opt.zero_grad()
        for _ in range(accumulate):
            x = train[torch.randint(0, len(train), (48,), generator=gen)]
            loss = F.mse_loss(model(x).float(), x.float())
            (loss / accumulate).backward()
        opt.step()
        if step % 65 == 0:
            t = model.select.temperature()
            genes = model.select.logits.argmax(-1).unique().numel()
            print(f"step {step} loss {loss.item():.4f} temperature {t:.3f} distinct {genes}")
    model.eval()
    with torch.no_grad():
        error = F.mse_loss(model(val).float(), val.float()).item()
    print("chosen genes", sorted(model.select.logits.argmax(-1).tolist()))
    print(f"RESULT {error:.5f}")


if __name__ == "__main__":
    main()
