"""RMSprop with an eps of 1 (a common choice for some vision recipes) and the learning rate that goes with it."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(24)
kind = torch.randint(0, 4, (800,))
image = 0.6 * torch.randn(800, 1, 12, 12)
for i in range(4):
    r, c = divmod(i, 2)
    image[kind == i, :, 6 * r:6 * r + 6, 6 * c:6 * c + 6] += 0.5

net = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
                    nn.Linear(144, 4))
opt = torch.optim.RMSprop(net.parameters(), lr=0.1, alpha=0.9, eps=1.0, momentum=0.9)
for step in range(100):
    rows = torch.randint(0, 600, (48,))
    loss = nn.functional.cross_entropy(net(image[rows]), kind[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(step, loss.item())
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(image[600:]), kind[600:]).item())
