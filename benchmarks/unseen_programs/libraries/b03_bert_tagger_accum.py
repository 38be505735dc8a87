"""Token tagging with a small BERT encoder, own loss function and gradient accumulation."""
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(21)

import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (
    BertConfig, BertForTokenClassification, Trainer, TrainerCallback, TrainingArguments,
)

VOCAB, TAGS = 60, 5


class Tagged(Dataset):
    """The tag of a token depends on the token and on its left neighbour."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        table = torch.randint(0, TAGS, (VOCAB, 3), generator=torch.Generator().manual_seed(9))
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(6, 20, (1,), generator=g))
            ids = torch.randint(4, VOCAB, (length,), generator=g)
            left = torch.cat([ids.new_zeros(1), ids[:-1]]) % 3
            self.rows.append({"input_ids": ids, "labels": table[ids, left]})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)

    def pad(key, value):
        return torch.stack([F.pad(r[key], (0, width - len(r[key])), value=value) for r in rows])

    ids, labels = pad("input_ids", 0), pad("labels", -100)
    return {"input_ids": ids, "attention_mask": (labels != -100).long(), "labels": labels}


def smoothed_loss(outputs, labels, num_items_in_batch=None):
    logits = outputs["logits"].reshape(-1, TAGS)
    return F.cross_entropy(
        logits, labels.reshape(-1), ignore_index=-100, label_smoothing=0.05
    )


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step:4d} train loss {float(logs['loss']):.4f}")


@torch.no_grad()
def error_rate(model, data):
    model.eval()
    wrong, total = 0, 0
    for s in range(0, len(data), 64):
        batch = collate([data[i] for i in range(s, min(s + 64, len(data)))])
        labels = batch.pop("labels")
        pred = model(**batch).logits.argmax(-1)
        keep = labels != -100
        wrong += (pred[keep] != labels[keep]).sum().item()
        total += keep.sum().item()
    return wrong / total


def main():
    train, valid = Tagged(1920, 1), Tagged(200, 2)
    model = BertForTokenClassification(BertConfig(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=96, max_position_embeddings=32, num_labels=TAGS,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.08,
    ))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
            per_device_train_batch_size=8, gradient_accumulation_steps=8, num_train_epochs=4,
            optim="sgd", optim_args="momentum=0.9", learning_rate=0.15, max_grad_norm=0.0,
            lr_scheduler_type="constant_with_warmup", warmup_steps=5, logging_steps=15, seed=21,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model, args=args, train_dataset=train, data_collator=collate,
            compute_loss_func=smoothed_loss, callbacks=[PrintLoss()],
        )
        trainer.train()
    print(f"RESULT {error_rate(model, valid):.4f}")


if __name__ == "__main__":
    main()
