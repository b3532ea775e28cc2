"""What the programs in workloads/ are held against: the same models out of Hugging Face's transformers.

    python -m benchmarks.gpu_peers bert --how trainer-compile --batch-size 512

Prints one line of JSON with samples/s. `--how`:

    plain             fp32, as it comes: AdamW, no compilation (BERT: under DDP, as its best-known test job has it)
    eager             fp32 parameters, bf16 autocast, fused AdamW, SDPA
    compile           the same, and torch.compile
    compile-pure      the same with parameters in bf16: no fp32 master weights
    trainer           transformers' Trainer: bf16, fused AdamW, data loader with workers and pinned memory
    trainer-compile   the same, and torch_compile

Everything that would cost a peer speed and is not arithmetic is off: gradient clipping, logging, checks for NaN.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_windows import Windows, run

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def model_of(args: argparse.Namespace) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    sdpa = {"attn_implementation": "sdpa"}
    if args.model == "bert":
        tiny = {**TINY, "intermediate_size": 128, "vocab_size": 512} if args.tiny else {}
        drop = {"hidden_dropout_prob": args.dropout, "attention_probs_dropout_prob": args.dropout}
        return transformers.BertForPreTraining(transformers.BertConfig(**drop, **tiny, **sdpa))
    if args.model == "gpt2":
        tiny = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512} if args.tiny else {}
        none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**none, **tiny, **sdpa, use_cache=False))
    tiny = {**TINY, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512} if args.tiny else {}
    shape = {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**shape, **tiny}, **sdpa, use_cache=False))


def batch_of(args: argparse.Namespace, vocabulary: int) -> dict[str, Tensor]:
    """Random words: kinder to the peers than the programs' own few words, whose gradients collide in compiled code."""
    size, length = args.batch_size, args.length
    words = torch.randint(4, vocabulary, (size, length))
    if args.model != "bert":
        return {"input_ids": words, "labels": words}
    masked = torch.rand(size, length).argsort(1)[:, : round((length - 3) * 0.15)]
    labels = torch.full_like(words, -100).scatter(1, masked, words.gather(1, masked))
    return {
        "input_ids": words.scatter(1, masked, 3),
        "token_type_ids": (torch.arange(length) >= length // 2).long().expand_as(words).contiguous(),
        "labels": labels,
        "next_sentence_label": torch.randint(2, (size,)),
    }


def loop(args: argparse.Namespace, device: torch.device) -> None:
    model: Any = model_of(args).to(device).train()
    batch = {name: value.to(device) for name, value in batch_of(args, model.config.vocab_size).items()}
    if args.how == "compile-pure":
        model.to(torch.bfloat16)
    fused = args.how != "plain" and device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused)
    if args.how == "plain" and args.model == "bert":
        torch.distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        model = nn.parallel.DistributedDataParallel(model)
    if args.how.startswith("compile"):
        model = torch.compile(model, backend="eager" if args.tiny else "inductor")
    lower = torch.autocast(device.type, torch.bfloat16, enabled=args.how in ("eager", "compile"))

    def step() -> None:
        with lower:
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    run(step, args.batch_size, args.seconds, args.every)


class Samples(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A few different batches, again and again."""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        self._columns = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}

    def __len__(self) -> int:
        return 1 << 24

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        rows = torch.tensor(indices) % len(next(iter(self._columns.values())))
        return {name: column[rows] for name, column in self._columns.items()}


class Order(torch.utils.data.Sampler[int]):
    """Not shuffled: sixteen million numbers would be drawn first."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(1 << 24))


def trainer(args: argparse.Namespace, device: torch.device) -> None:
    import transformers

    model: Any = model_of(args)
    windows = Windows(args.seconds, args.every)

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, arguments: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control.should_training_stop = not windows.step()
            return control

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return Order()

    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            max_steps=1 << 20,
            bf16=True,
            use_cpu=device.type == "cpu",
            optim="adamw_torch_fused" if device.type == "cuda" else "adamw_torch",
            torch_compile=args.how == "trainer-compile" and not args.tiny,
            max_grad_norm=0.0,
            dataloader_num_workers=2 if args.tiny else 4,
            dataloader_pin_memory=device.type == "cuda",
            report_to=[],
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,
            disable_tqdm=True,
        )
        data = Samples([batch_of(args, model.config.vocab_size) for _ in range(4)])
        Trainer(model, settings, train_dataset=data, data_collator=lambda batch: batch, callbacks=[Watch()]).train()
    windows.report(args.batch_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["bert", "gpt2", "llama3"])
    parser.add_argument(
        "--how", choices=["plain", "eager", "compile", "compile-pure", "trainer", "trainer-compile"], default="eager"
    )
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0, help="BERT's")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, after warm-up")
    parser.add_argument("--every", type=int, default=10, help="steps per window")
    parser.add_argument("--tiny", action="store_true", help="small and uncompiled: does this script work here?")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    (trainer if args.how.startswith("trainer") else loop)(args, device)
    os._exit(0)  # data loaders and process groups have nothing more to say


if __name__ == "__main__":
    main()
