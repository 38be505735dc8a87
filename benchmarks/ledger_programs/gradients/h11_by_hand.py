import torch

torch.manual_seed(23)
torch.set_num_threads(1)
H, V = 40, 12
Wxh = (torch.randn(V, H) * 0.3).requires_grad_()
Whh = (torch.eye(H) * 0.9).requires_grad_()
bh = torch.zeros(H, requires_grad=True)
Why = (torch.randn(H, V) * 0.1).requires_grad_()
by = torch.zeros(V, requires_grad=True)
params = [Wxh, Whh, bh, Why, by]
memory = [torch.zeros_like(p) for p in params]

stream = torch.tensor(([1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 1, 9, 10, 11, 0] * 60))
noise = torch.rand(len(stream)) < 0.03
stream[noise] = torch.randint(0, V, (int(noise.sum()),))


def run(chunk, h):
    loss = 0.0
    for a, b in zip(chunk[:-1], chunk[1:]):
        h = torch.tanh(Wxh[a] + h @ Whh + bh)
        loss = loss - torch.log_softmax(h @ Why + by, -1)[b]
    return loss, h


T, lr = 15, 0.05
train, held = stream[:720], stream[720:]
for epoch in range(4):
    h = torch.zeros(H)
    for k in range(0, len(train) - T - 1, T):
        loss, h = run(train[k:k + T + 1], h)
        h = h.detach()
        loss.backward()
        with torch.no_grad():
            for p, m in zip(params, memory):
                p.grad.clamp_(-5, 5)
                m += p.grad * p.grad
                p -= lr * p.grad / (m + 1e-8).sqrt()
                p.grad = None
    print(f"epoch {epoch} loss {loss.item() / T:.4f}")

with torch.no_grad():
    loss, _ = run(held, torch.zeros(H))
print(f"result: {loss.item() / (len(held) - 1):.4f}")
