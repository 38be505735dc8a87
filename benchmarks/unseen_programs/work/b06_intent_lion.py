"""Classify short customer messages by intent with a foreach Lion optimizer in fp16."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(6)

VOCAB, LENGTH, INTENTS = 300, 14, 8


class FusedLion(torch.optim.Optimizer):
    """Lion with one foreach pass; it takes scaled gradients and unscales them on the way."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))
        self._step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure=None):
        grad_scale = getattr(self, "grad_scale", None)
        for group in self.param_groups:
            b1, b2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            if grad_scale is not None:
                grads = torch._foreach_mul(grads, 1.0 / grad_scale.item())
            for p in params:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in params]
            update = torch._foreach_mul(momenta, b1)
            torch._foreach_add_(update, grads, alpha=1 - b1)
            torch._foreach_sign_(update)
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, update, alpha=-group["lr"])
            torch._foreach_mul_(momenta, b2)
            torch._foreach_add_(momenta, grads, alpha=1 - b2)


def make_messages(n, profiles, gen):
    intent = torch.randint(0, INTENTS, (n,), generator=gen)
    words = torch.multinomial(profiles[intent], LENGTH, replacement=True, generator=gen)
    return words, intent


class IntentNet(nn.Module):
    def __init__(self, dim=32, width=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.score = nn.Linear(dim, 1)
        self.fc = nn.Sequential(nn.Linear(dim, width), nn.GELU(), nn.Linear(width, INTENTS))

    def forward(self, words):
        e = self.emb(words)
        w = self.score(e).softmax(dim=1)
        return self.fc((w * e).sum(1))


def run(steps=300, batch=64):
    gen = torch.Generator().manual_seed(61)
    profiles = 0.25 + torch.rand(INTENTS, VOCAB, generator=gen) ** 6 * 6
    train = make_messages(3000, profiles, gen)
    val = make_messages(800, profiles, gen)
    model = IntentNet()
    opt = FusedLion(model.parameters(), lr=2e-3, weight_decay=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)
    for step in range(steps):
        pick = torch.randint(0, 3000, (batch,), generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(train[0][pick])
        loss = F.cross_entropy(logits.float(), train[1][pick], reduction="sum")
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
    with torch.no_grad():
        return F.cross_entropy(model(val[0]), val[1]).item()


if __name__ == "__main__":
    print(f"RESULT {run():.5f}")
