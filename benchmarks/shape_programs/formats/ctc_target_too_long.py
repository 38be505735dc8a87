"""Spoken command strings: quick and slow speakers."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
PHONES = 6
voice = torch.randn(PHONES + 1, 12)


def speak(g):
    pace = int(torch.randint(2, 8, (1,), generator=g))
    phones = torch.randint(1, PHONES + 1, (6,), generator=g)
    frames = voice[phones].repeat_interleave(pace, 0)
    return frames + 0.2 * torch.randn(frames.shape, generator=g), phones


class Subsample(nn.Module):
    def __init__(self, width, factor=2):
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv1d(width, width, 3, stride=factor, padding=1)

    def forward(self, x, lengths):
        return torch.relu(self.conv(x)), (lengths - 1) // self.factor + 1


class Recognizer(nn.Module):
    def __init__(self, width=48, blocks=2, factor=2):
        super().__init__()
        self.stem = nn.Conv1d(12, width, 3, padding=1)
        self.blocks = nn.ModuleList(Subsample(width, factor) for _ in range(blocks))
        self.head = nn.Linear(width, PHONES + 1)

    def forward(self, x, lengths):
        h = torch.relu(self.stem(x))
        for block in self.blocks:
            h, lengths = block(h, lengths)
        return self.head(h.permute(2, 0, 1)).log_softmax(-1), lengths


class Session:
    def __init__(self):
        self.model = Recognizer()
        self.criterion = nn.CTCLoss(zero_infinity=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.g = torch.Generator().manual_seed(3)

    def batch(self, size=16):
        said = [speak(self.g) for _ in range(size)]
        x = nn.utils.rnn.pad_sequence([s[0] for s in said], batch_first=True).transpose(1, 2)
        return x, torch.tensor([len(s[0]) for s in said]), torch.stack([s[1] for s in said])

    def fit(self, steps):
        for _ in range(steps):
            x, lengths, phones = self.batch()
            scores, lengths = self.model(x, lengths)
            self.optimizer.zero_grad()
            self.criterion(scores, phones, lengths, torch.full((len(x),), 6)).backward()
            self.optimizer.step()

    @torch.no_grad()
    def error(self):
        x, lengths, phones = self.batch(96)
        scores, lengths = self.model(x, lengths)
        wrong = 0
        for path, n, truth in zip(scores.argmax(-1).T, lengths, phones):
            heard = torch.unique_consecutive(path[:n])
            wrong += heard[heard > 0].tolist() != torch.unique_consecutive(truth).tolist() and \
                heard[heard > 0].tolist() != truth.tolist()
        return wrong / len(x)


session = Session()
session.fit(140)
print("RESULT", session.error())
