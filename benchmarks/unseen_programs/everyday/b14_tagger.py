"""Train a recurrent part-of-speech tagger on sentences of a small artificial grammar."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(1414)

TAGS = ["DET", "ADJ", "NOUN", "VERB", "ADV", "PREP"]
VOCAB, LENGTH = 90, 12
NEXT = torch.tensor([
    [0.0, 0.4, 0.6, 0.0, 0.0, 0.0],
    [0.0, 0.2, 0.8, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.1, 0.5, 0.1, 0.3],
    [0.4, 0.1, 0.1, 0.0, 0.3, 0.1],
    [0.3, 0.1, 0.0, 0.3, 0.1, 0.2],
    [0.6, 0.2, 0.2, 0.0, 0.0, 0.0]])


def make_sentences(n):
    """Words belong to one tag mostly, but a third of them are ambiguous between two tags."""
    g = torch.Generator().manual_seed(8)
    lexicon = torch.rand(len(TAGS), VOCAB, generator=g) ** 12
    tags = torch.zeros(n, LENGTH, dtype=torch.long)
    tags[:, 0] = torch.randint(0, len(TAGS), (n,))
    for t in range(1, LENGTH):
        tags[:, t] = torch.multinomial(NEXT[tags[:, t - 1]], 1).squeeze(1)
    words = torch.multinomial(lexicon[tags.flatten()], 1).view(n, LENGTH)
    return words, tags


class Tagger(nn.Module):
    def __init__(self, dim=32, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(2 * hidden, len(TAGS))
        self.log_softmax = nn.LogSoftmax(dim=1)

    def forward(self, words):
        h, _ = self.rnn(self.embed(words))
        scores = self.out(self.drop(h))
        return self.log_softmax(scores)


class Experiment:
    def __init__(self, steps=220, batch=48):
        self.steps, self.batch = steps, batch
        self.words, self.tags = make_sentences(1500)
        self.val_words, self.val_tags = make_sentences(300)
        self.model = Tagger()
        self.criterion = nn.NLLLoss()
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=2e-3)

    def loss(self, words, tags):
        log_prob = self.model(words)
        return self.criterion(log_prob.reshape(-1, len(TAGS)), tags.reshape(-1))

    def error_rate(self):
        self.model.eval()
        with torch.no_grad():
            guess = self.model(self.val_words).argmax(-1)
        self.model.train()
        return (guess != self.val_tags).float().mean().item()

    def run(self):
        for step in range(1, self.steps + 1):
            idx = torch.randint(0, len(self.words), (self.batch,))
            loss = self.loss(self.words[idx], self.tags[idx])
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
            self.optimizer.step()
            if step % 55 == 0:
                print(f"step {step} loss {loss.item():.4f} error {self.error_rate():.4f}")
        return self.error_rate()


if __name__ == "__main__":
    print(f"RESULT {Experiment().run():.5f}")
