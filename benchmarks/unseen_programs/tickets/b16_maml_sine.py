"""Meta-learn sinusoid regression and report query loss on new tasks after adaptation."""
import copy
import math
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(53)


class SineTasks:
    def __init__(self, seed, shots=10, queries=15):
        self.gen = torch.Generator().manual_seed(seed)
        self.shots, self.queries = shots, queries

    def sample(self):
        amp = 0.5 + 3.5 * torch.rand(1, generator=self.gen)
        phase = math.pi * torch.rand(1, generator=self.gen)
        x = -5 + 10 * torch.rand(self.shots + self.queries, 1, generator=self.gen)
        y = amp * torch.sin(x + phase)
        return x[:self.shots], y[:self.shots], x[self.shots:], y[self.shots:]

    def batch(self, n):
        return [self.sample() for _ in range(n)]


class Regressor(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)


class MetaLearner:
    def __init__(self, inner_lr=0.02, outer_lr=3e-3, inner_steps=1):
        self.model = Regressor()
        self.inner_lr, self.inner_steps = inner_lr, inner_steps
        self.criterion = nn.MSELoss()
        self.meta_optimizer = torch.optim.Adam(self.model.parameters(), lr=outer_lr)

    def inner_update(self, support_x, support_y, steps):
        adapted_model = copy.deepcopy(self.model)
        for _ in range(steps):
            loss = self.criterion(adapted_model(support_x), support_y)
            grads = torch.autograd.grad(loss, adapted_model.parameters(), create_graph=True)
            for param, grad in zip(adapted_model.parameters(), grads):
                param.data -= self.inner_lr * grad
        return adapted_model

    def outer_update(self, meta_loss):
        self.meta_optimizer.zero_grad()
        meta_loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.meta_optimizer.step()

    def meta_train_step(self, tasks):
        meta_loss = 0.0
        for support_x, support_y, query_x, query_y in tasks:
            adapted_model = self.inner_update(support_x, support_y, self.inner_steps)
            pred = adapted_model(query_x)
            meta_loss = meta_loss + self.criterion(pred, query_y)
        meta_loss = meta_loss / len(tasks)
        self.outer_update(meta_loss)
        return meta_loss.item()

    def evaluate(self, tasks, steps=5):
        total = 0.0
        for support_x, support_y, query_x, query_y in tasks:
            adapted_model = self.inner_update(support_x, support_y, steps)
            with torch.no_grad():
                total += self.criterion(adapted_model(query_x), query_y).item()
        return total / len(tasks)


def main():
    train_tasks, test_tasks = SineTasks(0), SineTasks(1).batch(60)
    learner = MetaLearner()
    smooth = None
    for it in range(1, 201):
        loss = learner.meta_train_step(train_tasks.batch(8))
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        if it % 50 == 0:
            print(f"iter {it} meta_loss {smooth:.4f} adapted {learner.evaluate(test_tasks):.4f}")
    print("RESULT", learner.evaluate(test_tasks))


if __name__ == "__main__":
    main()
