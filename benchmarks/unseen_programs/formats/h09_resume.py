import io

import torch
from torch import nn

torch.set_num_threads(1)


def counts(n, gen):
    x = torch.rand(n, 5, generator=gen)
    rate = torch.exp(1.5 * torch.sin(5 * x[:, 0]) + x[:, 1] - x[:, 2] * x[:, 3])
    return x, torch.poisson(rate, generator=gen)


class Run:
    """Everything that has to survive an interruption."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
        self.average = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=4e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, 800, eta_min=1e-5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=100)
        self.gen = torch.Generator().manual_seed(seed)
        self.step = 0

    def parts(self):
        return {k: getattr(self, k) for k in ("model", "average", "opt", "sched", "scaler")}

    def save(self):
        buffer = io.BytesIO()
        state = {k: v.state_dict() for k, v in self.parts().items()}
        torch.save({"parts": state, "step": self.step, "gen": self.gen.get_state()}, buffer)
        return buffer.getvalue()

    @classmethod
    def load(cls, blob):
        run = cls(seed=0)
        saved = torch.load(io.BytesIO(blob))
        for k, part in run.parts().items():
            part.load_state_dict(saved["parts"][k])
        run.step = saved["step"]
        run.gen.set_state(saved["gen"])
        return run

    def advance(self, data, steps):
        x, y = data
        for _ in range(steps):
            idx = torch.randint(0, len(x), (64,), generator=self.gen)
            with torch.autocast("cpu", torch.bfloat16):
                log_rate = self.model(x[idx])[:, 0]
            loss = nn.functional.poisson_nll_loss(log_rate.float(), y[idx])
            self.opt.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            self.sched.step()
            self.average.update_parameters(self.model)
            self.step += 1
        print(f"step {self.step} loss {loss.item():.4f} lr {self.sched.get_last_lr()[0]:.5f} scale {self.scaler.get_scale():.0f}")


def main():
    gen = torch.Generator().manual_seed(10)
    train, val = counts(5000, gen), counts(2000, gen)
    run = Run(seed=17)
    for leg in range(8):
        run.advance(train, 100)
        blob = run.save()
        if leg % 2:
            run = Run.load(blob)
    with torch.no_grad():
        out = run.average(val[0])[:, 0]
        best = nn.functional.poisson_nll_loss(out, val[1], full=True)
    print("RESULT", best.item())


main()
