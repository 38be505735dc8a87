"""Classify short messages with crowd labels of differing reliability, by a weighted Trainer."""
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(8)

import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification
from transformers import Trainer, TrainingArguments

VOCAB, LENGTH, CLASSES = 80, 16, 4


class Messages(Dataset):
    """Topic words decide the class; unreliable annotators often answer with the next class."""

    def __init__(self, n, seed, clean=False):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, CLASSES, (n,), generator=g)
        topic = 4 + self.y[:, None] * 19 + torch.randint(0, 19, (n, LENGTH), generator=g)
        other = torch.randint(4, VOCAB, (n, LENGTH), generator=g)
        self.ids = torch.where(torch.rand(n, LENGTH, generator=g) < 0.35, topic, other)
        good = torch.rand(n, generator=g) < 0.4
        self.weight = torch.where(good, 1.0, 0.02)
        if not clean:
            flip = ~good & (torch.rand(n, generator=g) < 0.85)
            self.y = torch.where(flip, (self.y + 1) % CLASSES, self.y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones(LENGTH, dtype=torch.long),
            "labels": self.y[i],
            "sample_weight": self.weight[i],
        }


class WeightedTrainer(Trainer):
    """Weights the loss of each example by the reliability of its annotator, where known."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        weight = inputs.pop("sample_weight", None)
        outputs = model(**inputs)
        per_item = F.cross_entropy(outputs.logits, labels, reduction="none")
        if weight is None:
            loss = per_item.mean()
        else:
            loss = (per_item * weight).sum() / weight.sum()
        return (loss, outputs) if return_outputs else loss


@torch.no_grad()
def error_rate(model, data):
    model.eval()
    logits = torch.cat([
        model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        for ids in data.ids.split(100)
    ])
    return (logits.argmax(-1) != data.y).float().mean().item()


def main():
    train, valid = Messages(2400, 1), Messages(400, 2, clean=True)
    model = DistilBertForSequenceClassification(DistilBertConfig(
        vocab_size=VOCAB, dim=48, n_layers=1, n_heads=4, hidden_dim=96, num_labels=CLASSES,
        max_position_embeddings=LENGTH, dropout=0.1, attention_dropout=0.0,
    ))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
            per_device_train_batch_size=32, num_train_epochs=2, learning_rate=2e-3,
            weight_decay=0.01, warmup_steps=15, logging_steps=25, seed=8,
            dataloader_pin_memory=False,
        )
        trainer = WeightedTrainer(model=model, args=args, train_dataset=train)
        trainer.train()
    print(f"RESULT {error_rate(model, valid):.4f}")


if __name__ == "__main__":
    main()
