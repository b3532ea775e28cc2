"""Logs as other programs write them, in the shape of real ones: one speaker's lines a function."""

# ruff: noqa: E501

import json
from collections.abc import Iterable

NOISE = "2025-01-15 10:00:00,123 INFO loading shard 3 of 64 from /data/part-00003.bin (1.2 GB)\n"


def neuron(rank: int, rate: str = "49.97", epoch: str = "0.31s") -> str:
    return (
        f"[Rank {rank}] - local_samples=78.1, total_time=1.56s, local_throughput={rate} samples/s, "
        f"local_avg_epoch_time={epoch}\n"
    )


def nvidia(rank: int, rate: str = "49.97 samples/second", time: str = "1.23 seconds") -> str:
    return f"Process {rank} - Training time: {time}\nProcess {rank} - Throughput: {rate}\n"


def seed(world: int, last: int = 10, planned: int = 10, first: int = 1) -> str:
    return "".join(
        f"step {step:4d}/{planned} | train loss {5 - step / 10:.6f} | lr 1.00e-05 | (120.50 ms | 42482 tok/s | "
        f"peak used:  1234 MB | peak reserved:  2048 MB, DP={world}, TP=1, SP=1, PP=1)\n"
        for step in range(first, last + 1)
    )


def megatron(world: int, last: int = 10, planned: int = 10, nan: int = 0) -> str:
    lines = f"using world size: {world}, data-parallel size: {world}, context-parallel size: 1\n"
    for step in range(1, last + 1):
        lines += (
            f" [2025-01-15 10:00:00] iteration {step:8d}/{planned:8d} | consumed samples: {step * 256:12d} | elapsed time "
            "per iteration (ms): 1280.0 | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.000000E-05 | "
            f"global batch size:   256 | lm loss: {10 - step / 10:.6E} | loss scale: 1.0 | grad norm: 1.234 | number of "
            f"skipped iterations:   0 | number of nan iterations:   {nan if step == last else 0} |\n"
        )
    return lines


def nemo(last: int = 9, planned: int = 9) -> str:
    return "".join(
        f"[NeMo I 2025-01-15 10:00:00 nemo_logging:393] Training epoch 0, iteration {step}/{planned} | lr: 0.0006 | "
        f"consumed_samples: {32 * (step + 1)} | global_batch_size: 32 | global_step: {step} | reduced_train_loss: "
        f"{11 - step * 0.3:.4g} | train_step_timing in s: 0.5\n"
        for step in range(last + 1)
    )


def nemo_bar(last: int = 10, planned: int = 10) -> str:
    bars = "".join(
        f"\rEpoch 0: :  {10 * step:2d}%|█▏        | {step}/{planned} [01:10<10:30, v_num=k2, reduced_train_loss="
        f"{10 - step / 10:.3f}, global_step={step - 1:.1f}, consumed_samples={512.0 * step}, train_step_timing in s=6.99]"
        for step in range(1, last + 1)
    )
    return bars + "\n"


def trainer(last: int = 10, *, end: bool = True, strings: bool = False) -> str:
    def shown(items: dict[str, float]) -> str:
        return str({name: str(value) if strings else value for name, value in items.items()}) + "\n"

    lines = "".join(
        shown({"loss": round(3 - step / 10, 4), "grad_norm": 1.2, "learning_rate": 4.5e-05, "epoch": step / 10})
        for step in range(1, last + 1)
    )
    over = {"train_runtime": 123.4567, "train_samples_per_second": 81.0, "train_steps_per_second": 2.53}
    bar = "100%|██████████| 300/300 [02:03<00:00,  2.43it/s]"
    return lines + (bar + shown({**over, "train_loss": 1.234, "epoch": 1.0}) if end else "")


def titan(last: int = 10, *, end: bool = False, colour: bool = True) -> str:
    def paint(code: int) -> str:
        return f"\x1b[{code}m" if colour else ""

    head = "[titan] 2025-07-21 15:57:42,774 - root - INFO - "
    lines = "".join(
        f"{head}{paint(31)}step: {step:2}  {paint(32)}loss: {4.99 - step / 10:7.4f}  {paint(33)}grad_norm:  2.6422  "
        f"{paint(34)}memory: 35.51GiB(37.37%)  {paint(35)}tps: 30,768  {paint(36)}tflops: 3.15  mfu: 0.32%{paint(39)}\n"
        for step in range(1, last + 1)
    )
    return lines + (f"{head}Training completed\n" if end else "")


def nanogpt(last: int = 10) -> str:
    lines = "tokens per iteration will be: 491,520\nstep 0: train loss 10.9, val loss 10.9\n"
    return lines + "".join(
        f"iter {step}: loss {10 - step / 10:.4f}, time 122.88ms, mfu 12.34%\n" for step in range(last + 1)
    )


def lightning(world: int, epochs: int = 2, *, end: bool = True) -> str:
    lines = "".join(
        f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/{world}\n" for rank in range(world)
    )
    lines += f"All distributed processes registered. Starting with {world} processes\n"
    for epoch in range(epochs):
        for done in range(0, 101, 20):
            loss = 3 - epoch - done / 100
            bar = (
                f"Epoch {epoch}: {done:3}%|███▍  | {done}/100 [00:10<00:00,  9.85it/s, v_num=0, train_loss={loss:.3f}]"
            )
            lines += "\r" + bar
    return lines + ("\n`Trainer.fit` stopped: `max_epochs=2` reached.\n" if end else "\n")


def deepspeed(last: int = 100) -> str:
    return "".join(
        f"[2024-07-17 19:53:24,981] [INFO] [timer.py:258:stop] epoch=0/micro_step={step}/global_step={step}, "
        "RunningAvgSamplesPerSec=16.12, CurrSamplesPerSec=16.81, MemAllocated=0.02GB, MaxMemAllocated=0.97GB\n"
        for step in range(10, last + 1, 10)
    )


def nccl(ranks: Iterable[int], bandwidth: str = "123.456", wrong: str = "0 OK", *, end: bool = True) -> str:
    lines = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20\n#\n"
    lines += "# Using devices\n" + "".join(
        f"#  Rank {rank:2} Group  0 Pid {895544 + rank} on     h100-{rank // 4} device  {rank % 4} [0002:00:01] NVIDIA H100\n"
        for rank in ranks
    )
    lines += "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    lines += "           8             2     float     sum      -1    17.08    0.00    0.00      0\n"
    return lines + (f"# Out of bounds values : {wrong}\n# Avg bus bandwidth    : {bandwidth} \n#\n" if end else "")


def mllog(status: str = "success", steps: int = 3, *, end: bool = True) -> str:
    def event(key: str, value: object = None, time: int = 1000, **meta: object) -> str:
        said = {"namespace": "", "time_ms": time, "event_type": "POINT_IN_TIME", "key": key, "value": value}
        return f":::MLLOG {json.dumps(said | {'metadata': {'file': 'train.py', 'lineno': 12, **meta}})}\n"

    lines = event("run_start") + event("epoch_start", epoch_num=1)
    lines += "".join(event("tracked_stats", {"throughput": 100.5}, step=step) for step in range(1, steps + 1))
    return lines + (event("epoch_stop", time=31000, epoch_num=1) + event("run_stop", status=status) if end else "")


def tagged(lines: str, tag: str) -> str:
    """Each line with a launcher's prefix."""
    return "".join(tag + line for line in lines.splitlines(keepends=True))


def woven(*parts: str) -> str:
    """The lines of several speakers, in turn."""
    rows = [part.splitlines(keepends=True) for part in parts]
    length = max(map(len, rows))
    return "".join(row[at] for at in range(length) for row in rows if at < len(row))


def mpirun(said: dict[int, str]) -> str:
    return woven(*(tagged(lines, f"[1,{rank}]<stdout>:") for rank, lines in said.items()))


def srun(said: dict[int, str]) -> str:
    return woven(*(tagged(lines, f"{rank}: ") for rank, lines in said.items()))


def torchrun(said: dict[int, str], role: str = "default") -> str:
    return woven(*(tagged(lines, f"[{role}{rank}]:") for rank, lines in said.items()))
