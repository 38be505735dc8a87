"""Two-view self-distillation on synthetic sensor windows, teacher used as the final encoder."""
import copy
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

torch.set_num_threads(1)
torch.manual_seed(0)

protos = torch.randn(6, 40)
labels = torch.randint(0, 6, (900,))
windows = protos[labels] * 0.8 + torch.randn(900, 40)
few = 120  # labelled windows


def augment(w):
    return w * (torch.rand_like(w) > 0.2) + 0.2 * torch.randn_like(w)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 6)

    def forward(self, w):
        return self.head(self.body(w))


student = Net()
teacher = copy.deepcopy(student).requires_grad_(False)
opt = torch.optim.AdamW(student.parameters(), lr=3e-3)


@torch.no_grad()
def follow(momentum):
    slow = parameters_to_vector(teacher.parameters())
    fast = parameters_to_vector(student.parameters())
    slow.lerp_(fast, 1 - momentum)


for step in range(140):
    sup = torch.randint(0, few, (32,))
    uns = torch.randint(few, 700, (64,))
    with torch.no_grad():
        soft = teacher(windows[uns]).softmax(1)
    loss = nn.functional.cross_entropy(student(augment(windows[sup])), labels[sup])
    consistency = nn.functional.cross_entropy(student(augment(windows[uns])), soft)
    total = loss + 0.3 * consistency
    opt.zero_grad()
    total.backward()
    opt.step()
    follow(0.95)
    if step % 35 == 0:
        print(f"{step:4d} sup {loss.item():.3f} cons {consistency.item():.3f}")

teacher.eval()
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(teacher(windows[700:]), labels[700:]).item())
