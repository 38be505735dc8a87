"""Simulate federated averaging over clients with different sensors; report global test error."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(37)
CLASSES, DIM = 5, 16
CENTERS = torch.randn(CLASSES, DIM) * 1.1


def client_data(n, client, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    x = CENTERS[y] + torch.randn(n, DIM, generator=gen)
    offset = torch.randn(DIM, generator=torch.Generator().manual_seed(500 + client))
    gain = 0.5 + 0.4 * client
    return gain * x + 2.0 * offset, y


class Net(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(DIM, hidden), nn.BatchNorm1d(hidden)
        self.fc2, self.bn2 = nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden)
        self.fc3 = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn1(self.fc1(x)))
        return self.fc3(F.relu(self.bn2(self.fc2(x))))


class Client:
    def __init__(self, cid, model, n_train, lr):
        gen = torch.Generator().manual_seed(cid)
        self.x, self.y = client_data(n_train, cid, gen)
        self.x_test, self.y_test = client_data(120, cid, gen)
        self.train_samples = n_train
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def set_parameters(self, model):
        for new_param, old_param in zip(model.parameters(), self.model.parameters()):
            old_param.data = new_param.data.clone()

    def train(self, local_epochs=1, batch=20):
        self.model.train()
        for _ in range(local_epochs):
            for idx in torch.randperm(len(self.x)).split(batch):
                loss = F.cross_entropy(self.model(self.x[idx]), self.y[idx])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return loss.item()


class FedAvg:
    def __init__(self, args):
        self.args = args
        self.global_model = Net()
        self.clients = [Client(i, self.global_model, 80 + 20 * i, args["lr"])
                        for i in range(args["num_clients"])]

    def send_models(self):
        for client in self.clients:
            client.set_parameters(self.global_model)

    def receive_models(self, selected):
        total = sum(c.train_samples for c in selected)
        self.uploaded_weights = [c.train_samples / total for c in selected]
        self.uploaded_models = [c.model for c in selected]

    def add_parameters(self, w, client_model):
        for server, local in zip(self.global_model.parameters(), client_model.parameters()):
            server.data += local.data.clone() * w

    def aggregate_parameters(self):
        self.global_model = copy.deepcopy(self.uploaded_models[0])
        for param in self.global_model.parameters():
            param.data.zero_()
        for w, client_model in zip(self.uploaded_weights, self.uploaded_models):
            self.add_parameters(w, client_model)

    @torch.no_grad()
    def test_global(self):
        self.global_model.eval()
        x = torch.cat([c.x_test for c in self.clients])
        y = torch.cat([c.y_test for c in self.clients])
        return (self.global_model(x).argmax(1) != y).float().mean().item()

    def train(self):
        for rnd in range(1, self.args["global_rounds"] + 1):
            self.send_models()
            order = torch.randperm(len(self.clients))[:self.args["join"]]
            selected = [self.clients[i] for i in order.tolist()]
            losses = [c.train(self.args["local_epochs"]) for c in selected]
            self.receive_models(selected)
            self.aggregate_parameters()
            if rnd % 4 == 0:
                print(f"round {rnd} train_loss {sum(losses) / len(losses):.4f} "
                      f"global_error {self.test_global():.4f}")
        return self.test_global()


if __name__ == "__main__":
    server = FedAvg(dict(num_clients=6, join=5, global_rounds=16, local_epochs=2, lr=0.05))
    print("RESULT", server.train())
