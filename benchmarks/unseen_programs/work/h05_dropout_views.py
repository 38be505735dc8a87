"""Sentence embeddings whose two views are the same sentence under two dropout masks."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(45)

VOCAB, WORDS, TOPICS = 300, 16, 20


class Corpus:
    def __init__(self, gen):
        self.gen = gen
        self.topics = 0.03 + torch.rand(TOPICS, VOCAB, generator=gen) ** 20 * 8

    def sentences(self, topic):
        weights = self.topics[topic]
        return torch.multinomial(weights, WORDS, replacement=True, generator=self.gen)


class SentenceEncoder(nn.Module):
    def __init__(self, dim=48, drop=0.2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.drop = nn.Dropout(drop)
        self.out = nn.Sequential(
            nn.Linear(dim, dim), nn.Tanh(), nn.Dropout(drop), nn.Linear(dim, dim)
        )

    def forward(self, words):
        return F.normalize(self.out(self.drop(self.emb(words)).mean(1)), dim=1)


def view_loss(a, b, temperature=0.1):
    logits = a @ b.t() / temperature
    target = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))


@torch.no_grad()
def retrieval_error(encoder, corpus, topics):
    """Share of sentences whose nearest neighbour is about another topic."""
    encoder.eval()
    z = encoder(corpus.sentences(topics))
    sim = (z @ z.t()).fill_diagonal_(-2.0)
    encoder.train()
    return (topics[sim.argmax(1)] != topics).float().mean().item()


def main():
    gen = torch.Generator().manual_seed(450)
    corpus = Corpus(gen)
    val_topics = torch.arange(TOPICS).repeat(20)
    encoder = SentenceEncoder()
    opt = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    print(f"error before {retrieval_error(encoder, corpus, val_topics):.3f}")
    for step in range(300):
        words = corpus.sentences(torch.randint(0, TOPICS, (96,), generator=gen))
        # The same words twice: only the dropout masks differ.
        loss = view_loss(encoder(words), encoder(words))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 60 == 0:
            err = retrieval_error(encoder, corpus, val_topics)
            print(f"step {step} loss {loss.item():.4f} error {err:.3f}")
    print(f"RESULT {retrieval_error(encoder, corpus, val_topics):.5f}")


if __name__ == "__main__":
    main()
