"""One rank of an all-reduce: times sums of growing size over all ranks, on `cuda` (NCCL) or `cpu` (gloo).

Run by a launcher: python -m benchmarks.programs.all_reduce DEVICE BYTES…
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    kind, *sizes = sys.argv[1:]
    cuda = kind == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    for size in map(int, sizes):
        data = torch.ones(size // 4, device=device)
        seconds = timed(data, 20 if size < 1 << 28 else 10)
        if dist.get_rank() == 0:
            print(f"REDUCED {size} {seconds}", flush=True)
    dist.destroy_process_group()


def timed(data: torch.Tensor, count: int) -> float:
    """Seconds of one sum, the mean of `count` in a row."""
    for _ in range(5):
        dist.all_reduce(data)
    dist.barrier()
    settle(data)
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(data)
    settle(data)
    return (time.perf_counter() - began) / count


def settle(data: torch.Tensor) -> None:
    if data.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
