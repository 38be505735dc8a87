import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(51)

x = torch.randn(1600, 6)
y = (x[:, 0] * x[:, 1] + x[:, 2] + 0.1 * torch.randn(1600))[:, None]
loader = DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=40, shuffle=True)


def forever():
    while True:
        for batch in loader:
            yield batch


net = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=120)
stream = forever()
for block in range(12):
    # a block is ten steps; the stream goes on where the last block stopped
    for features, target in itertools.islice(stream, 10):
        loss = nn.functional.mse_loss(net(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        held_out = nn.functional.mse_loss(net(x[1200:]), y[1200:]).item()
    print(f"block {block} held out {held_out:.4f}")
print("RESULT", held_out)
