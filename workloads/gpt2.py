"""GPT-2 pre-training, data-, tensor- and pipeline-parallel.

python -m workloads.gpt2                                          one process, on what there is
python -m workloads.launch --nproc-per-node 8 -m workloads.gpt2 --device cuda --tensor-parallel 2
"""

# isort: off
import workloads.early  # noqa: F401 - before torch, see there
# isort: on

from workloads import lm
from workloads.gpt2_model import SIZES, Gpt2

# What is not given on the command line depends on the size.
DEFAULTS = {
    "tiny": {"batch_size": 4, "sequence_length": 32, "num_iteration": 10, "learning_rate": 1e-3},
    "124M": {"batch_size": 8, "sequence_length": 1024, "num_iteration": 20, "learning_rate": 6e-4},
}
ON_GPU = {
    "124M": {"batch_size": 32, "num_iteration": 200, "dtype": "auto", "warmup_time": 5.0, "log_every": 10},
}
FAMILY = lm.Family("gpt2", Gpt2, SIZES, DEFAULTS, ON_GPU)

if __name__ == "__main__":
    lm.main(FAMILY)
