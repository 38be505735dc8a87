"""Fine-tune a network pretrained on one scanner with small batches of another scanner."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2020)

SIZE, GRADES = 16, 4


def slices(n, grades, balanced=True):
    if balanced:
        grade = torch.randint(0, grades, (n,))
    else:
        # a ward sends its patients in runs of one grade
        grade = torch.arange(n) // 8 % grades
    texture = 0.4 + 0.5 * grade.float()
    coarse = F.interpolate(torch.randn(n, 1, SIZE // 4, SIZE // 4), size=SIZE, mode="bilinear")
    fine = torch.randn(n, 1, SIZE, SIZE)
    image = coarse * 0.8 + texture.view(-1, 1, 1, 1) * fine * 0.6
    return image, grade


class Backbone(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.c1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.b1 = nn.BatchNorm2d(width)
        self.c2 = nn.Conv2d(width, width, 3, padding=1, stride=2, bias=False)
        self.b2 = nn.BatchNorm2d(width)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        x = F.relu(self.b2(self.c2(x)))
        return x.mean((2, 3))


class Grader(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def freeze_norms(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.requires_grad_(False)


def evaluate(model, image, grade):
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(image), grade)
    return loss.item()


def pretrain(steps=120):
    image, grade = slices(1500, GRADES)
    model = Grader(Backbone(), GRADES)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        idx = torch.randint(0, len(image), (48,))
        loss = F.cross_entropy(model(image[idx]), grade[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"pretraining ends at {loss.item():.4f}")
    return model.backbone


def fine_tune(backbone, epochs=4):
    image, grade = slices(480, GRADES, balanced=False)
    image = 1.15 * image + 0.2
    val_image, val_grade = slices(400, GRADES)
    val_image = 1.15 * val_image + 0.2
    model = Grader(backbone, GRADES)
    freeze_norms(model)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.02, momentum=0.8)
    for epoch in range(epochs):
        model.train()
        for start in torch.randperm(60).tolist():
            batch = slice(8 * start, 8 * start + 8)
            loss = F.cross_entropy(model(image[batch]), grade[batch])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
        print(f"epoch {epoch} val {evaluate(model, val_image, val_grade):.4f}")
    return evaluate(model, val_image, val_grade)


if __name__ == "__main__":
    print(f"RESULT {fine_tune(pretrain()):.5f}")
