# Auto-decoder for 1-d shapes: one free code per shape, one network that draws all shapes.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
SHAPES, POINTS = 40, 24


class Drawer(nn.Module):
    def __init__(self, code=4, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(code + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, code, where):
        return self.net(torch.cat([code, where], -1))[..., 0]


class AutoDecoder:
    def __init__(self):
        self.drawer = Drawer()
        self.codes = nn.Parameter(0.1 * torch.randn(SHAPES, 4))
        self.draw_opt = torch.optim.Adam(self.drawer.parameters(), lr=8e-3)
        self.code_opt = torch.optim.SGD([self.codes], lr=60.0)

    def predict(self, ids, where):
        code = self.codes[ids][:, None].expand(-1, where.shape[1], -1)
        return self.drawer(code, where)

    def learn(self, ids, where, height):
        self.drawer.zero_grad()
        loss = nn.functional.mse_loss(self.predict(ids, where), height)
        loss.backward()
        self.draw_opt.step()
        self.code_opt.step()
        return loss.item()


gen = torch.Generator().manual_seed(6)
centre = torch.rand(SHAPES, 1, generator=gen) * 2 - 1
sign = torch.where(torch.rand(SHAPES, 1, generator=gen) < 0.5, -1.0, 1.0)
model = AutoDecoder()
for step in range(150):
    ids = torch.randint(0, SHAPES, (20,), generator=gen)
    where = torch.rand(20, POINTS, 1, generator=gen) * 2 - 1
    height = sign[ids] * torch.exp(-3 * (where[..., 0] - centre[ids]) ** 2)
    value = model.learn(ids, where, height)
    if step % 30 == 0:
        print(step, round(value, 4))
with torch.no_grad():
    where = torch.linspace(-1, 1, 50).view(1, 50, 1).expand(SHAPES, 50, 1)
    height = sign * torch.exp(-3 * (where[..., 0] - centre) ** 2)
    print("RESULT", nn.functional.mse_loss(model.predict(torch.arange(SHAPES), where), height).item())
