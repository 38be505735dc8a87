"""Causal language model on packed documents with the transformers Trainer, labels kept equal."""
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(13)

import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback
from transformers import TrainingArguments

VOCAB, EOS, BLOCK = 32, 1, 40


def documents(n, seed):
    """Counting sequences with a stride from 1 to 4, of differing lengths, closed by EOS."""
    g = torch.Generator().manual_seed(seed)
    docs = []
    for _ in range(n):
        stride = int(torch.randint(1, 5, (1,), generator=g))
        length = int(torch.randint(6, 16, (1,), generator=g))
        start = int(torch.randint(0, VOCAB - 2, (1,), generator=g))
        body = (start + stride * torch.arange(length)) % (VOCAB - 2) + 2
        docs.append(torch.cat([body, torch.tensor([EOS])]))
    return docs


def pack(docs):
    """One long stream cut in blocks. Positions start again with every document."""
    ids = torch.cat(docs)
    pos = torch.cat([torch.arange(len(d)) for d in docs])
    n = len(ids) // BLOCK
    ids, pos = ids[:n * BLOCK].view(n, BLOCK), pos[:n * BLOCK].view(n, BLOCK)
    labels = ids.clone()
    labels[pos == 0] = -100
    return [{"input_ids": i, "position_ids": p, "labels": y} for i, p, y in zip(ids, pos, labels)]


class ZLossTrainer(Trainer):
    """Adds a small z-loss, which keeps the normaliser of the softmax near one."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        keep = inputs["labels"][:, 1:] != -100
        z = outputs.logits[:, :-1].logsumexp(-1)[keep]
        scale = 1.0 if num_items_in_batch is None else keep.sum() / num_items_in_batch
        loss = loss + 1e-3 * z.pow(2).mean() * scale
        return (loss, outputs) if return_outputs else loss


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


@torch.no_grad()
def nll(model, rows):
    model.eval()
    ids = torch.stack([r["input_ids"] for r in rows])
    pos = torch.stack([r["position_ids"] for r in rows])
    labels = torch.stack([r["labels"] for r in rows])
    logits = model(input_ids=ids, position_ids=pos).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()).item()


def main():
    train, valid = pack(documents(3000, 1)), pack(documents(300, 2))
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=64,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=EOS,
    ))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
            per_device_train_batch_size=12, gradient_accumulation_steps=2, max_steps=100,
            learning_rate=5e-3, adam_beta2=0.95, lr_scheduler_type="constant_with_warmup",
            warmup_steps=12, logging_steps=20, seed=13, dataloader_pin_memory=False,
        )
        ZLossTrainer(
            model=model, args=args, train_dataset=train, callbacks=[Report()],
        ).train()
    print(f"RESULT {nll(model, valid):.4f}")


if __name__ == "__main__":
    main()
