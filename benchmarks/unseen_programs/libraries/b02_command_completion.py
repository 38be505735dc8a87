"""Fine-tune a small Llama-style model to complete short commands, with padding by the collator."""
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(3)

import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast,
    Trainer, TrainingArguments,
)

VERBS = ["copy", "move", "open", "list", "drop", "send"]
NOUNS = ["file", "folder", "table", "image", "report", "mail", "key", "log"]
TAILS = ["now", "quietly", "twice", "later"]


def build_tokenizer():
    words = ["<unk>", "<s>", "</s>", "<pad>", "the", "and"] + VERBS + NOUNS + TAILS
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
    )
    tok.pad_token = tok.eos_token
    return tok


def sample_command(gen):
    def pick(items):
        return items[int(torch.randint(0, len(items), (1,), generator=gen))]

    v = VERBS.index(pick(VERBS))
    text = f"<s> {VERBS[v]} the {NOUNS[(v + int(torch.rand(1, generator=gen) < 0.5)) % 8]}"
    if torch.rand(1, generator=gen) < 0.5:
        text += f" and {pick(VERBS)} the {pick(NOUNS)}"
    if v % 2 == 0:
        text += " " + TAILS[v % 4]
    return text + " </s>"


def encode(tok, n, seed):
    gen = torch.Generator().manual_seed(seed)
    rows = [tok(sample_command(gen), add_special_tokens=False)["input_ids"] for _ in range(n)]
    return [{"input_ids": r} for r in rows]


@torch.no_grad()
def completion_nll(model, rows):
    """Mean negative log likelihood of all tokens after the first, the end token included."""
    model.eval()
    total, count = 0.0, 0
    for row in rows:
        ids = torch.tensor(row["input_ids"])[None]
        logits = model(input_ids=ids[:, :-1]).logits[0]
        total += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return total / count


def main():
    tok = build_tokenizer()
    train, valid = encode(tok, 1200, 1), encode(tok, 150, 2)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
        bos_token_id=tok.bos_token_id, eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
    ))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
            per_device_train_batch_size=24, max_steps=120, learning_rate=2e-3, warmup_steps=10,
            logging_steps=20, seed=3, dataloader_pin_memory=False,
        )
        collator = DataCollatorForLanguageModeling(tokenizer=tok, mlm=False)
        trainer = Trainer(
            model=model, args=args, train_dataset=train, data_collator=collator,
        )
        trainer.train()
    prompt = torch.tensor([[tok.bos_token_id]])
    sample = model.generate(prompt, max_new_tokens=14, do_sample=False)
    print("sample:", tok.decode(sample[0]))
    print(f"RESULT {completion_nll(model, valid):.4f}")


if __name__ == "__main__":
    main()
