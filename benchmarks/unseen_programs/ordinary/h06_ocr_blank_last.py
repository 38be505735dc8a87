"""CTC with the blank as the last class, so that symbol 0 is an ordinary letter."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(6)

LETTERS, BLANK, SHAPE = "abcdef", 6, 6
pattern = torch.randn(len(LETTERS), 2, SHAPE)


def plates(n, length=3):
    text = torch.randint(0, len(LETTERS), (n, length))
    gap = torch.zeros(n, length, 1, SHAPE)
    x = torch.cat([gap, pattern[text]], 2).flatten(1, 2)
    x = torch.cat([x, torch.zeros(n, 2, SHAPE)], 1)
    return x + 0.2 * torch.randn_like(x), text


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(SHAPE, 64, 3, padding=1)
        self.out = nn.Conv1d(64, len(LETTERS) + 1, 3, padding=1)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x.transpose(1, 2)))).permute(2, 0, 1).log_softmax(-1)


net = Recogniser()
ctc = nn.CTCLoss(blank=BLANK)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(200):
    x, text = plates(32)
    logp = net(x)
    loss = ctc(logp, text, torch.full((32,), logp.size(0)), torch.full((32,), text.size(1)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())

x, text = plates(200)
with torch.no_grad():
    best = net(x).argmax(-1).t().tolist()
wrong = 0
for row, truth in zip(best, text.tolist()):
    read = [k for i, k in enumerate(row) if k != BLANK and (i == 0 or k != row[i - 1])]
    wrong += read != truth
print("RESULT", wrong / 200)
