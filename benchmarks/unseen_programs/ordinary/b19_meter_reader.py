"""Reading water meter strips: columns of pixels -> digit string, trained with CTC."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(53)

CHARSET = "0123456789"
index = {c: i for i, c in enumerate(CHARSET)}
glyph = {c: torch.randn(3, 8) for c in CHARSET}
LENGTH = 4


def strips(n):
    images, texts = [], []
    for _ in range(n):
        text = "".join(CHARSET[int(k)] for k in torch.randint(0, 10, (LENGTH,)))
        columns = []
        for c in text:
            columns += [torch.zeros(1, 8), glyph[c]]
        columns.append(torch.zeros(1, 8))
        images.append(torch.cat(columns))
        texts.append(text)
    return torch.stack(images) + 0.15 * torch.randn(n, 4 * LENGTH + 1, 8), texts


def encode(texts):
    flat = [index[c] for t in texts for c in t]
    return torch.tensor(flat), torch.tensor([len(t) for t in texts])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 48, 3, padding=1)
        self.rnn = nn.GRU(48, 32, bidirectional=True, batch_first=True)
        self.out = nn.Linear(64, len(CHARSET) + 1)

    def forward(self, x):
        h = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.rnn(h)[0]).log_softmax(-1)


def greedy(logp, blank):
    names = {v: k for k, v in index.items()}
    result = []
    for row in logp.argmax(-1).tolist():
        row = [k for i, k in enumerate(row) if i == 0 or k != row[i - 1]]
        result.append("".join(names.get(k, "?") for k in row if k != blank))
    return result


images, texts = strips(640)
model = Reader()
ctc = nn.CTCLoss(zero_infinity=True)
opt = torch.optim.Adam(model.parameters(), lr=8e-3)
for epoch in range(7):
    for i in range(0, 640, 32):
        target, length = encode(texts[i:i + 32])
        logp = model(images[i:i + 32])
        steps = torch.full((32,), logp.size(1))
        loss = ctc(logp.transpose(0, 1), target, steps, length)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, "ctc", round(loss.item(), 4))

images, texts = strips(200)
with torch.no_grad():
    read = greedy(model(images), ctc.blank)
print(texts[:4], read[:4])
print("RESULT", sum(a != b for a, b in zip(texts, read)) / len(texts))
