import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.set_num_threads(1)
torch.manual_seed(90)

WORDS, BATCH = 400, 16


class Dictionary(IterableDataset):
    """Reads entries (word, sense) from a long file, a range of lines at a time."""

    def __init__(self, senses):
        self.senses = senses
        self.first, self.step = 0, 1

    def __iter__(self):
        for line in range(self.first, len(self.senses) * 2, self.step):
            word = (line * 149) % len(self.senses)
            yield word, self.senses[word]


class Spelled(IterableDataset):
    """Adds to each entry the letters of the word."""

    def __init__(self, source, letters):
        self.source, self.letters = source, letters

    def __iter__(self):
        for word, sense in self.source:
            yield word, self.letters[word], sense


def share_lines(worker):
    info = get_worker_info()
    info.dataset.first, info.dataset.step = info.id, info.num_workers


class Lexicon(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(WORDS, 16)
        self.letter = nn.Linear(8, 16)
        self.out = nn.Linear(32, 8)

    def forward(self, word, letters):
        return self.out(torch.cat([self.word(word), torch.tanh(self.letter(letters))], 1))


def main():
    senses = torch.randn(WORDS, 8)
    letters = senses.sign() * (torch.rand(WORDS, 8) < 0.5) + 0.5 * torch.randn(WORDS, 8)
    net = Lexicon()
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-2)
    lines = Spelled(Dictionary(senses), letters)
    loader = DataLoader(lines, BATCH, num_workers=2, worker_init_fn=share_lines)
    budget = 2 * WORDS // BATCH
    for step, (word, spelled, sense) in enumerate(loader):
        if step == budget:
            break
        loss = nn.functional.mse_loss(net(word, spelled), sense)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = nn.functional.mse_loss(net(torch.arange(WORDS), letters), senses)
    print("RESULT", error.item())


if __name__ == "__main__":
    main()
