"""Solve a 2-D Helmholtz problem with a physics-informed network; report the relative L2 error."""
import math
import torch
import torch.nn as nn
from torch import autograd

torch.set_num_threads(1)
torch.manual_seed(17)
A1, A2, K = 1.0, 1.0, 1.0


def exact(g):
    return torch.sin(A1 * math.pi * g[:, :1]) * torch.sin(A2 * math.pi * g[:, 1:])


def source(g):
    u = exact(g)
    return -(A1 * math.pi) ** 2 * u - (A2 * math.pi) ** 2 * u + K ** 2 * u


class FCN(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.activation = nn.Tanh()
        self.linears = nn.ModuleList(
            [nn.Linear(layers[i], layers[i + 1]) for i in range(len(layers) - 1)])
        for lin in self.linears:
            nn.init.xavier_normal_(lin.weight)
            nn.init.zeros_(lin.bias)

    def forward(self, x):
        for lin in self.linears[:-1]:
            x = self.activation(lin(x))
        return self.linears[-1](x)


class HelmholtzSolver:
    def __init__(self, layers, n_boundary=80, n_interior=400):
        self.dnn = FCN(layers)
        self.mse = nn.MSELoss()
        side = torch.rand(n_boundary, 2) * 2 - 1
        pick = torch.arange(n_boundary) % 4
        side[pick == 0, 0], side[pick == 1, 0] = -1.0, 1.0
        side[pick == 2, 1], side[pick == 3, 1] = -1.0, 1.0
        self.x_bc, self.u_bc = side, exact(side)
        self.x_pde = torch.rand(n_interior, 2) * 2 - 1
        self.f_pde = source(self.x_pde)
        self.iter = 0

    def loss_bc(self):
        return self.mse(self.dnn(self.x_bc), self.u_bc)

    def loss_pde(self):
        g = self.x_pde.clone().requires_grad_(True)
        u = self.dnn(g)
        u_x = autograd.grad(u, g, grad_outputs=torch.ones_like(u), create_graph=True)[0]
        u_xx = autograd.grad(u_x, g, grad_outputs=torch.ones_like(u_x), create_graph=True)[0]
        u_xx_1 = u_xx[:, [0]]
        u_xx_2 = u_xx[:, [1]]
        residual = u_xx_1 + u_xx_2 + K ** 2 * u - self.f_pde
        return self.mse(residual, torch.zeros_like(residual))

    def loss(self):
        return 10.0 * self.loss_bc() + 0.1 * self.loss_pde()

    @torch.no_grad()
    def test(self):
        ax = torch.linspace(-1, 1, 50)
        grid = torch.stack(torch.meshgrid(ax, ax, indexing="ij"), -1).reshape(-1, 2)
        u = exact(grid)
        return ((self.dnn(grid) - u).norm() / u.norm()).item()

    def train_adam(self, steps, lr):
        opt = torch.optim.Adam(self.dnn.parameters(), lr=lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=lr / 20)
        for _ in range(steps):
            opt.zero_grad()
            loss = self.loss()
            loss.backward()
            opt.step()
            sched.step()
            self.report(loss)

    def train_lbfgs(self, max_iter):
        opt = torch.optim.LBFGS(self.dnn.parameters(), lr=1.0, max_iter=max_iter,
                                history_size=40, line_search_fn="strong_wolfe")

        def closure():
            opt.zero_grad()
            loss = self.loss()
            loss.backward()
            self.report(loss)
            return loss

        opt.step(closure)

    def report(self, loss):
        self.iter += 1
        if self.iter % 50 == 0:
            print(f"iter {self.iter} loss {loss.item():.3e} rel_l2 {self.test():.4f}")


if __name__ == "__main__":
    solver = HelmholtzSolver([2, 32, 32, 32, 1])
    solver.train_adam(250, 5e-3)
    solver.train_lbfgs(90)
    print("RESULT", solver.test())
