"""Truncated back-propagation on endless character streams; the carried state is cut at each window."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)

TEXT = ("the tide comes in and the tide goes out and the boats lie down on the sand "
        "until the water lifts them again and the men row to the nets ") * 60
chars = sorted(set(TEXT))
data = torch.tensor([chars.index(c) for c in TEXT])
STREAMS, WINDOW = 16, 12
usable = len(data) // STREAMS * STREAMS
streams = data[:usable].view(STREAMS, -1)


def windows():
    for i in range(0, streams.size(1) - WINDOW - 1, WINDOW):
        yield streams[:, i:i + WINDOW], streams[:, i + 1:i + WINDOW + 1]


class CharNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(len(chars), 16)
        self.cell = nn.GRU(16, width, batch_first=True)
        self.out = nn.Linear(width, len(chars))

    def forward(self, x, state):
        h, state = self.cell(self.embed(x), state)
        return self.out(h), state


net = CharNet()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
source, state = windows(), None
history = []
for step in range(180):
    try:
        x, y = next(source)
    except StopIteration:
        source, state = windows(), None
        x, y = next(source)
    logits, state = net(x, state)
    state = state.detach()
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    history.append(loss.detach())
    if step % 30 == 0:
        print(step, torch.stack(history[-30:]).mean().item())
print("RESULT", torch.stack(history[-15:]).mean().item())
