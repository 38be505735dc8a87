"""Trains a residual regression network in float16 mixed precision with gradient clipping."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(73)


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class SurrogateModule(nn.Module):
    """Predicts the response of a process from its settings."""

    def __init__(self, dim_in=8, dim=48, depth=3, lr=0.05):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(dim_in, dim), *[Residual(dim) for _ in range(depth)],
                                 nn.LayerNorm(dim), nn.Linear(dim, 1))

    def training_step(self, batch):
        x, y = batch
        return F.mse_loss(self.net(x).squeeze(-1), y)

    def configure_optimizers(self, total):
        opt = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=1e-5)
        return opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)


class NativeMixedPrecision:
    def __init__(self, init_scale=2.0 ** 16):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=200)

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.float16)

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def pre_optimizer_step(self, optimizer):
        self.scaler.unscale_(optimizer)

    def step(self, optimizer):
        self.scaler.step(optimizer)
        self.scaler.update()


class Trainer:
    def __init__(self, max_steps, gradient_clip_val, log_every_n_steps=50):
        self.max_steps, self.clip, self.log_every = max_steps, gradient_clip_val, log_every_n_steps
        self.precision = NativeMixedPrecision()
        self.grad_norm = 0.0

    def clip_gradients(self, module):
        self.grad_norm = float(nn.utils.clip_grad_norm_(module.parameters(), self.clip))

    def run_optimization(self, module, optimizer, batch):
        optimizer.zero_grad()
        with self.precision.autocast():
            loss = module.training_step(batch)
        self.precision.backward(loss)
        self.clip_gradients(module)
        self.precision.pre_optimizer_step(optimizer)
        self.precision.step(optimizer)
        return loss.item()

    @torch.no_grad()
    def validate(self, module, data):
        module.eval()
        with self.precision.autocast():
            loss = module.training_step(data).item()
        module.train()
        return loss

    def fit(self, module, train, val, batch_size=32):
        optimizer, scheduler = module.configure_optimizers(self.max_steps)
        step = 0
        while step < self.max_steps:
            for idx in torch.randperm(len(train[0])).split(batch_size):
                loss = self.run_optimization(module, optimizer, (train[0][idx], train[1][idx]))
                scheduler.step()
                step += 1
                if step % self.log_every == 0:
                    print(f"step {step} train_loss {loss:.4f} "
                          f"val_loss {self.validate(module, val):.4f}"
                          f" grad_norm {self.grad_norm:.4g} "
                          f"scale {self.precision.scaler.get_scale():.0f}")
                if step == self.max_steps:
                    break
        return self.validate(module, val)


def process(n):
    x = torch.randn(n, 8)
    y = torch.sin(x[:, 0] * 1.5) + 0.5 * x[:, 1] * x[:, 2] + 0.4 * x[:, 3].abs() - 0.3 * x[:, 4]
    return x, y + 0.05 * torch.randn(n)


module = SurrogateModule()
result = Trainer(max_steps=300, gradient_clip_val=1.0).fit(module, process(3000), process(500))
print("RESULT", round(result, 5))
