"""fp16 working tables, fp32 originals under Adagrad: its small constant lives where it is representable."""
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, RANK = 50, 6
shared = torch.randn(WORDS, 3)
truth = shared @ shared.T


def pairs(n):
    i, j = torch.randint(0, WORDS, (2, n))
    return i, j, truth[i, j]


left = (0.3 * torch.randn(WORDS, RANK)).requires_grad_()
right = (0.3 * torch.randn(WORDS, RANK)).requires_grad_()
optimizer = torch.optim.Adagrad([left, right], lr=0.3)
for step in range(150):
    work = [t.detach().half().requires_grad_() for t in (left, right)]
    i, j, value = pairs(128)
    guess = (work[0][i].float() * work[1][j].float()).sum(-1)
    loss = torch.nn.functional.huber_loss(guess, value)
    grads = torch.autograd.grad(loss * 128, work)
    for t, g in zip((left, right), grads):
        t.grad = g.float() / 128
    optimizer.step()
with torch.no_grad():
    print("RESULT", (left @ right.T - truth).pow(2).mean().item())
