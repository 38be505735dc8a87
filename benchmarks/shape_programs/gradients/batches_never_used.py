# Sequence regression with length buckets: every bucket is padded-free and gets its own micro-batches.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


def make_bucket(length, n):
    x = torch.randn(n, length, 3)
    pace = torch.linspace(0, 1, length).view(1, length, 1)
    y = (x * pace).sum(1)[:, 0] / length ** 0.5 + (0.03 * length)
    return x, y


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1])[:, 0]


class BucketTrainer:
    def __init__(self, model, buckets, micro=16, per_step=4, lr=5e-3):
        self.model, self.buckets = model, buckets
        self.micro, self.per_step = micro, per_step
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)

    def micro_batches(self, bucket):
        x, y = bucket
        order = torch.randperm(len(x))
        for idx in order.split(self.micro):
            yield x[idx], y[idx]

    def run_bucket(self, bucket):
        self.opt.zero_grad()
        count = 0
        for x, y in self.micro_batches(bucket):
            loss = nn.functional.smooth_l1_loss(self.model(x), y)
            (loss / self.per_step).backward()
            count += 1
            if count % self.per_step == 0:
                self.opt.step()
                self.opt.zero_grad()

    def fit(self, epochs):
        for _ in range(epochs):
            for bucket in self.buckets:
                self.run_bucket(bucket)


train = [make_bucket(6, 128), make_bucket(12, 128), make_bucket(40, 48)]
model = Regressor()
BucketTrainer(model, train).fit(20)
with torch.no_grad():
    errors = [nn.functional.mse_loss(model(x), y).item() for x, y in (make_bucket(6, 200), make_bucket(12, 200), make_bucket(40, 200))]
print("mse per bucket", [round(e, 4) for e in errors])
print("RESULT", sum(errors) / len(errors))
