# Batches are drawn and their fixed features computed by a worker thread in full precision on purpose.
import queue
import threading
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
fixed, shift = torch.randn(6, 40) * 0.5, 6.28 * torch.rand(40)


def worker(out, steps):
    gen = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(steps):
            x = torch.randn(64, 6, generator=gen)
            out.put((torch.cos(x @ fixed + shift), torch.sin(x[:, :1]) + x[:, 1:2] * 0.5))
    out.put(None)


net = nn.Sequential(nn.Linear(40, 48), nn.GELU(), nn.Linear(48, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
batches = queue.Queue(4)
thread = threading.Thread(target=worker, args=(batches, 150), daemon=True)
thread.start()
average = None
while (batch := batches.get()) is not None:
    features, y = batch
    with torch.autocast("cpu", torch.bfloat16):
        out = net(features)
    loss = nn.functional.mse_loss(out.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    average = loss.item() if average is None else 0.9 * average + 0.1 * loss.item()
thread.join()
print("RESULT", average)
