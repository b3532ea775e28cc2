"""Stands in for a training: says what it was told; with --save writes, with --load reads what was written."""

import os
import sys
from pathlib import Path

arguments = sys.argv[1:]
print(os.environ["TORCHELASTIC_RUN_ID"], *arguments, flush=True)
if "--fail" in arguments:
    sys.exit(7)
if "--save" in arguments:
    Path(arguments[arguments.index("--save") + 1]).write_text("saved")
if "--load" in arguments:
    print(Path(arguments[arguments.index("--load") + 1]).read_text(), flush=True)
