# Feature matching: hooks are registered for every step and taken off again by an ExitStack.
import contextlib
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
teacher = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)).eval()
student = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
teacher.requires_grad_(False)
opt = torch.optim.Adam(student.parameters(), lr=5e-3)


@contextlib.contextmanager
def tapped(net, store):
    with contextlib.ExitStack() as stack:
        for layer in net:
            if isinstance(layer, nn.Tanh):
                handle = layer.register_forward_hook(lambda m, i, o: store.append(o))
                stack.callback(handle.remove)
        yield


for step in range(150):
    x = torch.randn(64, 10)
    a, b = [], []
    with tapped(teacher, a), tapped(student, b):
        goal, out = teacher(x), student(x)
    loss = nn.functional.mse_loss(out, goal) + 0.1 * sum(nn.functional.mse_loss(s, t) for s, t in zip(b, a))
    opt.zero_grad()
    loss.backward()
    opt.step()
x = torch.randn(500, 10)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(student(x), teacher(x)).item())
