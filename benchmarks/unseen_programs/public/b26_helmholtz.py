"""Solves a two-dimensional Helmholtz problem with a physics-informed network."""
import math

import torch
import torch.nn as nn
from torch import autograd

torch.set_num_threads(1)
torch.manual_seed(83)

A1, A2, K = 1.0, 1.0, 1.0


def exact(g):
    return torch.sin(A1 * math.pi * g[:, [0]]) * torch.cos(0.5 * A2 * math.pi * g[:, [1]])


def source(g):
    factor = K ** 2 - (A1 * math.pi) ** 2 - (0.5 * A2 * math.pi) ** 2
    return factor * exact(g)


def boundary_points(n, gen):
    side = 2 * torch.rand(n, 1, generator=gen) - 1
    one = torch.ones_like(side)
    return torch.cat([torch.cat([side, one], 1), torch.cat([side, -one], 1),
                      torch.cat([one, side], 1), torch.cat([-one, side], 1)])


class FCN(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.activation = nn.Tanh()
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in zip(layers[:-1], layers[1:]))
        for layer in self.linears:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        for layer in self.linears[:-1]:
            x = self.activation(layer(x))
        return self.linears[-1](x)


class HelmholtzPINN:
    def __init__(self, layers, lr, steps, boundary_weight=20.0):
        self.model = FCN(layers)
        self.loss_function = nn.MSELoss(reduction="mean")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps, lr / 20)
        self.boundary_weight, self.iter = boundary_weight, 0

    def loss_BC(self, x_bc):
        return self.loss_function(self.model(x_bc), exact(x_bc))

    def loss_PDE(self, x_pde):
        g = x_pde.clone()
        g.requires_grad = True
        u = self.model(g)
        u_x = autograd.grad(u, g, torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_xx = autograd.grad(u_x, g, torch.ones_like(u_x), create_graph=True)[0]
        u_xx_1, u_xx_2 = u_xx[:, [0]], u_xx[:, [1]]
        residual = u_xx_1 + u_xx_2 + K ** 2 * u - source(g)
        return self.loss_function(residual, torch.zeros_like(residual))

    def step(self, x_pde, x_bc):
        self.optimizer.zero_grad()
        loss_bc, loss_pde = self.loss_BC(x_bc), self.loss_PDE(x_pde)
        loss = self.boundary_weight * loss_bc + loss_pde
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.iter += 1
        return loss_bc.item(), loss_pde.item()

    @torch.no_grad()
    def test(self, points):
        truth = exact(points)
        return ((self.model(points) - truth).norm() / truth.norm()).item()


def latin_hypercube(n, gen):
    cols = [(torch.randperm(n, generator=gen) + torch.rand(n, generator=gen)) / n for _ in range(2)]
    return 2 * torch.stack(cols, 1) - 1


gen = torch.Generator().manual_seed(1)
axis = torch.linspace(-1, 1, 41)
grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)
steps = 400
pinn = HelmholtzPINN([2, 40, 40, 40, 1], lr=4e-3, steps=steps)
interior, edge = latin_hypercube(500, gen), boundary_points(40, gen)
for it in range(1, steps + 1):
    if it % 100 == 1:
        interior, edge = latin_hypercube(500, gen), boundary_points(40, gen)
    loss_bc, loss_pde = pinn.step(interior, edge)
    if it % 80 == 0:
        print(f"iter {it} BC {loss_bc:.3e} PDE {loss_pde:.3e}")
print("RESULT", round(pinn.test(grid), 5))
