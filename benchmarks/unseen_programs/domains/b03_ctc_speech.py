import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(3)

ALPHABET = "abcdefgh"
BLANK = len(ALPHABET)
char2id = {c: i for i, c in enumerate(ALPHABET)}
N_MELS = 12


class SpokenWords(Dataset):
    """Short utterances: every letter is a noisy spectral pattern of a few frames."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        proto = np.random.default_rng(77).normal(size=(len(ALPHABET), N_MELS)) * 1.5
        self.items = []
        for _ in range(n):
            text = "".join(rng.choice(list(ALPHABET), size=rng.integers(2, 6)))
            frames = []
            for c in text:
                frames += [proto[char2id[c]]] * int(rng.integers(4, 7))
                frames += [np.zeros(N_MELS)] * int(rng.integers(1, 3))
            x = np.stack(frames) + rng.normal(size=(len(frames), N_MELS)) * 0.5
            self.items.append((torch.tensor(x, dtype=torch.float32), torch.tensor([char2id[c] for c in text])))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    xs, ys = zip(*batch)
    return (pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]),
            torch.cat(ys), torch.tensor([len(y) for y in ys]))


class AcousticModel(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.sub = nn.Conv1d(N_MELS, hidden, 5, stride=2, padding=2)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, len(ALPHABET) + 1)

    def forward(self, x, lens):
        h = torch.relu(self.sub(x.transpose(1, 2))).transpose(1, 2)
        lens = (lens + 1) // 2
        h, _ = self.rnn(h)
        return self.fc(h).log_softmax(-1), lens


def decode(logp, n):
    path = torch.unique_consecutive(logp[:n].argmax(-1)).tolist()
    return [k for k in path if k != BLANK]


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, cb in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (ca != cb))
    return row[-1]


@torch.no_grad()
def cer(model, loader):
    model.eval()
    wrong = total = 0
    for x, xl, y, yl in loader:
        logp, out_len = model(x, xl)
        for lp, n, ref in zip(logp, out_len, y.split(yl.tolist())):
            wrong += edit_distance(decode(lp, n), ref.tolist())
            total += len(ref)
    return wrong / total


def main():
    train = DataLoader(SpokenWords(1200, 0), batch_size=32, shuffle=True, collate_fn=collate)
    dev = DataLoader(SpokenWords(200, 1), batch_size=50, collate_fn=collate)
    model = AcousticModel()
    criterion = nn.CTCLoss(zero_infinity=True)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for epoch in range(8):
        model.train()
        losses = []
        for x, xl, y, yl in train:
            logp, out_len = model(x, xl)
            loss = criterion(logp.transpose(0, 1), y, out_len, yl)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            losses.append(loss.item())
        print(f"epoch {epoch} ctc {np.mean(losses):.3f} CER {cer(model, dev):.3f}")
    print("RESULT", cer(model, dev))


if __name__ == "__main__":
    main()
