import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class Server:
    def __init__(self, model):
        self.model = model

    def aggregate(self, states, weights):
        avg = {}
        for k in states[0]:
            avg[k] = sum(w * s[k] for w, s in zip(weights, states))
        self.model.state_dict().update(avg)

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        return F.cross_entropy(self.model(x), y).item()


class Client:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def local_update(self, global_model, epochs=2, lr=0.1):
        model = copy.deepcopy(global_model)
        model.train()
        opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        for _ in range(epochs):
            for idx in torch.randperm(len(self.x)).split(32):
                loss = F.cross_entropy(model(self.x[idx]), self.y[idx])
                opt.zero_grad()
                loss.backward()
                opt.step()
        return model.state_dict(), loss.item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    w = torch.randn(10, 3)

    def make(n, shift):
        x = torch.randn(n, 10) + shift
        return x, (x @ w + 0.3 * torch.sin(3 * x[:, :3])).argmax(-1)

    clients = [Client(*make(n, 0.3 * torch.randn(10))) for n in (128, 96, 160, 64)]
    total = sum(len(c.x) for c in clients)
    server = Server(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)))
    vx, vy = make(1000, 0.0)
    for rnd in range(12):
        results = [c.local_update(server.model) for c in clients]
        server.aggregate([s for s, _ in results], [len(c.x) / total for c in clients])
        print(f"round {rnd}: client loss {sum(l for _, l in results) / len(results):.3f}")
    print("result:", server.evaluate(vx, vy))


main()
