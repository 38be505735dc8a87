"""Train embeddings, biases and head of a randomly drawn, else frozen BERT with the Trainer."""
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(18)

from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification
from transformers import Trainer, TrainerCallback, TrainingArguments

VOCAB, LENGTH, CLASSES = 50, 12, 3


class Reviews(Dataset):
    """The class is the sentiment group with most words in the text."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, VOCAB, (n, LENGTH), generator=g)
        counts = torch.stack([(ids % 3 == k).sum(1) for k in range(CLASSES)], dim=1)
        self.ids = ids
        self.y = (counts + 0.1 * torch.rand(n, CLASSES, generator=g)).argmax(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.y[i]}


class TwoRateTrainer(Trainer):
    """The head learns four times faster than the rest."""

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            body, head = [], []
            for name, p in self.model.named_parameters():
                if p.requires_grad:
                    (head if name.startswith("classifier") else body).append(p)
            lr = self.args.learning_rate
            self.optimizer = torch.optim.AdamW(
                [{"params": body, "lr": lr / 4}, {"params": head, "lr": lr}], weight_decay=0.0
            )
        return self.optimizer


class StopBelow(TrainerCallback):
    """Ends the run as soon as the evaluation loss is small enough."""

    def __init__(self, target):
        self.target = target

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(f"step {state.global_step} eval loss {metrics['eval_loss']:.4f}")
        if metrics["eval_loss"] < self.target:
            control.should_training_stop = True
        return control


@torch.no_grad()
def mean_loss(model, data):
    model.eval()
    parts = [model(input_ids=i, labels=y).loss * len(y)
             for i, y in zip(data.ids.split(100), data.y.split(100))]
    return (sum(parts) / len(data)).item()


def main():
    train, valid = Reviews(3200, 1), Reviews(400, 2)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=VOCAB, hidden_size=96, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=192, max_position_embeddings=16, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
    ))
    for name, p in model.named_parameters():
        trainable = name.startswith("classifier") or "bias" in name or "LayerNorm" in name
        p.requires_grad_(trainable or name.startswith(("bert.pooler", "bert.embeddings")))
    frozen = sum(not p.requires_grad for p in model.parameters())
    print(f"{frozen} tensors stay as they were drawn")
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
            per_device_train_batch_size=32, max_steps=200, learning_rate=2e-2,
            eval_strategy="steps", eval_steps=40, per_device_eval_batch_size=200,
            logging_steps=40, warmup_steps=10, seed=18, dataloader_pin_memory=False,
        )
        TwoRateTrainer(
            model=model, args=args, train_dataset=train, eval_dataset=valid,
            callbacks=[StopBelow(0.15)],
        ).train()
    print(f"RESULT {mean_loss(model, valid):.4f}")


if __name__ == "__main__":
    main()
