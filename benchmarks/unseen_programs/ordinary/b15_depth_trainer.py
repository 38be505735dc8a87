"""Monocular depth regression with a small trainer class and half precision."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(37)


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(),
                                 nn.Conv2d(12, 12, 3, padding=1), nn.ReLU())
        self.dec = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        return self.dec(self.enc(x))


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu")
        self.log = []

    def compute_loss(self, batch):
        image, depth = batch
        with torch.autocast("cpu", torch.float16):
            prediction = self.model(image)
        loss = (prediction.float() - depth).abs().mean()
        self.log.append(loss.item())
        return self.scaler.scale(loss)

    def training_step(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.compute_loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, batches, epochs):
        for epoch in range(epochs):
            for batch in batches:
                self.training_step(batch)
            print(f"epoch {epoch}: l1 {sum(self.log[-len(batches):]) / len(batches):.4f}")


def scenes(n):
    rows = torch.linspace(0, 1, 12).view(1, 1, 12, 1)
    tilt = torch.rand(n, 1, 1, 1)
    depth = (rows * (0.5 + tilt) + 0.2 * torch.rand(n, 1, 1, 12)).expand(n, 1, 12, 12)
    image = 1.0 / (0.4 + depth) + 0.03 * torch.randn(n, 1, 12, 12)
    return image, depth


if __name__ == "__main__":
    image, depth = scenes(640)
    batches = list(zip(image.split(16), depth.split(16)))
    trainer = Trainer(DepthNet(), lr=0.02)
    trainer.fit(batches, epochs=4)
    image, depth = scenes(100)
    with torch.no_grad():
        print("RESULT", (trainer.model(image) - depth).abs().mean().item())
