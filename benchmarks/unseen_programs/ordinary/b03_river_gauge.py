# Rainfall -> discharge with a plain recurrent net, 60 day windows.
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(21)

DAYS, BATCH, STEPS, MAX_NORM = 60, 32, 220, 1.0


def catchment(n):
    rain = torch.zeros(n, DAYS, 2)
    wet = torch.rand(n, DAYS) < 0.3
    rain[..., 0] = torch.where(wet, torch.empty(n, DAYS).exponential_(1.0), torch.zeros(n, DAYS))
    rain[..., 1] = torch.randn(n, DAYS) * 0.3
    store = torch.zeros(n)
    flow = []
    for d in range(DAYS):
        store = 0.88 * store + rain[:, d, 0] * (1 + 0.2 * rain[:, d, 1])
        flow.append(0.25 * store ** 1.3)
    flow = torch.stack(flow, 1)
    burst = torch.rand(n) < 0.004
    flow[burst] = flow[burst] * 30.0
    return rain, flow


class Gauge(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.rnn = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        nn.init.eye_(self.rnn.weight_hh_l0)
        self.out = nn.Linear(width, 1)

    def forward(self, rain):
        h, _ = self.rnn(rain)
        return self.out(h).squeeze(-1)


def fit(model, rain, flow):
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    criterion = nn.MSELoss()
    for step in range(STEPS):
        idx = torch.randint(0, len(rain), (BATCH,))
        opt.zero_grad()
        pred = model(rain[idx])
        loss = criterion(pred, flow[idx])
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"step {step}: {loss.item():.4g}")


rain, flow = catchment(1200)
model = Gauge()
fit(model, rain, flow)

rain_v, flow_v = catchment(300)
with torch.no_grad():
    err = (model(rain_v) - flow_v).abs().median(1).values
print("RESULT", float(err.mean()))
