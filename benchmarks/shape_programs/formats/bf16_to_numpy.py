"""Anomaly detection on machine telemetry: the alarm threshold follows a percentile of the errors."""
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
modes = torch.randn(4, 20)


def telemetry(n, faulty=False):
    x = torch.randn(n, 4) @ modes + 0.1 * torch.randn(n, 20)
    return x + 1.5 * torch.randn(n, 20) if faulty else x


class Threshold:
    def __init__(self, q):
        self.q, self.value = q, float("inf")

    def on_epoch_end(self, trainer):
        errors = trainer.errors(telemetry(256))
        self.value = float(np.percentile(errors, self.q))
        trainer.log.append(self.value)


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks, self.log = model, callbacks, []
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def errors(self, x):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            rebuilt = self.model(x)
        return (rebuilt - x.to(rebuilt.dtype)).abs().amax(-1)

    def fit(self, epochs, steps):
        for epoch in range(epochs):
            for _ in range(steps):
                x = telemetry(64)
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.mse_loss(self.model(x), x)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            for callback in self.callbacks:
                callback.on_epoch_end(self)


alarm = Threshold(95)
trainer = Trainer(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6), nn.Linear(6, 20)), [alarm])
trainer.fit(3, 40)
missed = (trainer.errors(telemetry(500, faulty=True)) < alarm.value).float().mean()
print("RESULT", missed.item())
