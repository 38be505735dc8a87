"""Distils a large classifier of digits on a grid into a small one with soft targets."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(41)

CLASSES, DIM, TEMPERATURE, MIX = 10, 48, 5.0, 0.9
prototypes = torch.randn(CLASSES, DIM)
prototypes[1::2] = 0.6 * prototypes[1::2] + 0.7 * prototypes[::2]


def digits(n, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=gen)
    scale = 0.7 + 0.6 * torch.rand(n, 1, generator=gen)
    return prototypes[label] * scale + 1.1 * torch.randn(n, DIM, generator=gen), label


def classifier(width):
    return nn.Sequential(nn.Linear(DIM, width), nn.ReLU(), nn.Linear(width, CLASSES))


@torch.no_grad()
def validate(model, x, y):
    model.eval()
    loss = F.cross_entropy(model(x), y).item()
    error = (model(x).argmax(dim=1) != y).float().mean().item()
    model.train()
    return loss, error


def epochs(x, n, size=100):
    for epoch in range(n):
        for chunk in torch.randperm(len(x)).split(size):
            yield epoch, chunk


def train_teacher(x, y):
    teacher = classifier(256)
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=1e-3, weight_decay=0.05)
    for _, chunk in epochs(x, 5):
        loss = F.cross_entropy(teacher(x[chunk]), y[chunk])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return teacher.eval().requires_grad_(False)


def distillation_loss(student_logits, teacher_logits, label):
    soft = F.kl_div(
        F.log_softmax(student_logits, dim=1),
        F.softmax(teacher_logits / TEMPERATURE, dim=1),
        reduction="batchmean") * TEMPERATURE ** 2
    hard = F.cross_entropy(student_logits, label)
    return MIX * soft + (1 - MIX) * hard


train_x, train_y = digits(4000, 1)
val_x, val_y = digits(2000, 2)
teacher = train_teacher(train_x, train_y)
print("teacher loss %.4f error %.4f" % validate(teacher, val_x, val_y))
student = classifier(12)
optimizer = torch.optim.Adam(student.parameters(), lr=4e-3)
for step, (epoch, chunk) in enumerate(epochs(train_x, 10)):
    with torch.no_grad():
        wanted = teacher(train_x[chunk])
    loss = distillation_loss(student(train_x[chunk]), wanted, train_y[chunk])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 79:
        val_loss, val_error = validate(student, val_x, val_y)
        print(f"epoch {epoch} loss {loss.item():.4f} val {val_loss:.4f} error {val_error:.4f}")
print("RESULT", round(validate(student, val_x, val_y)[0], 4))
