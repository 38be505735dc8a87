"""The average is kept wide; a bf16 snapshot of it answers the validation queries."""
import copy
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
torch.set_num_threads(1)
w = torch.randn(10)


def sample(n):
    x = torch.randn(n, 10)
    return x, torch.tanh(x @ w)[:, None]


model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(150):
    x, y = sample(64)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    loss = nn.functional.mse_loss(out.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    if step % 30 == 29:
        served = copy.deepcopy(average.module).to(torch.bfloat16)
        with torch.no_grad():
            x, y = sample(256)
            print(step, (served(x.bfloat16()).float() - y).pow(2).mean().item())
x, y = sample(1000)
with torch.no_grad():
    print("RESULT", (average(x) - y).pow(2).mean().item())
