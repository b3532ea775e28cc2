"""Llama 3 pre-training, data-, tensor- and pipeline-parallel.

python -m workloads.llama3                                          one process, on what there is
python -m workloads.launch --nproc-per-node 8 -m workloads.llama3 --device cuda --tensor-parallel 2
"""

# isort: off
import workloads.early  # noqa: F401 - before torch, see there
# isort: on

from workloads import lm
from workloads.llama3_model import SIZES, Llama3

# What is not given on the command line depends on the size.
DEFAULTS = {
    "tiny": {"batch_size": 4, "sequence_length": 32, "num_iteration": 10, "learning_rate": 1e-3},
    "1B": {"batch_size": 4, "sequence_length": 2048, "num_iteration": 20, "learning_rate": 3e-4},
    "8B": {"batch_size": 1, "sequence_length": 2048, "num_iteration": 20, "learning_rate": 1e-4},
}
LARGE = {"sequence_length": 4096, "num_iteration": 40, "dtype": "auto", "warmup_time": 5.0, "log_every": 2}
ON_GPU = {"1B": {**LARGE, "batch_size": 8}, "8B": LARGE}
FAMILY = lm.Family("llama3", Llama3, SIZES, DEFAULTS, ON_GPU)

if __name__ == "__main__":
    lm.main(FAMILY)
