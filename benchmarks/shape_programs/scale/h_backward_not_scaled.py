"""Language model over a synthetic grammar; the output layer is evaluated in chunks to save memory."""
import torch
from torch import nn

torch.manual_seed(14)
torch.set_num_threads(1)
VOCAB, LENGTH, DIM = 40, 10, 32


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.rnn = nn.RNN(DIM, DIM, batch_first=True)

    def forward(self, s):
        return self.rnn(self.embed(s))[0]


def chunked_loss(hidden, head, target, weight, chunks=4):
    """Runs the head piece by piece; returns the loss and the gradient at `hidden`."""
    leaf = hidden.detach().requires_grad_()
    total = 0.0
    for h, t in zip(leaf.chunk(chunks), target.chunk(chunks)):
        with torch.autocast("cpu", torch.float16):
            logits = head(h)
        part = nn.functional.cross_entropy(logits.float().flatten(0, 1), t.flatten()) / chunks
        part.backward(weight)
        total += part.item()
    return total, leaf.grad


def text(n):
    s = torch.empty(n, LENGTH + 1, dtype=torch.long)
    s[:, 0] = torch.randint(0, VOCAB, (n,))
    for k in range(LENGTH):
        s[:, k + 1] = (s[:, k] * 3 + torch.randint(0, 2, (n,))) % VOCAB
    return s


data, test = text(1024), text(256)
body, head = Body(), nn.Linear(DIM, VOCAB)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.5, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
for step in range(120):
    batch = data[torch.randint(0, len(data), (64,))]
    opt.zero_grad()
    hidden = body(batch[:, :-1])
    loss, grad = chunked_loss(hidden, head, batch[:, 1:], scaler.scale(torch.ones(())))
    scaler.scale(1e-3 * hidden.pow(2).mean()).backward(retain_graph=True)
    hidden.backward(grad)
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    logits = head(body(test[:, :-1]))
    print("RESULT", float(nn.functional.cross_entropy(logits.flatten(0, 1), test[:, 1:].flatten())))
