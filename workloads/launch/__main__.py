"""python -m workloads.launch [options] program [arguments …]"""

from __future__ import annotations

import os
import sys

from workloads.launch.args import HelpAsked, parse
from workloads.launch.options import UsageError
from workloads.launch.spawn import settle_descriptors
from workloads.launch.supervise import run

USAGE = 2


def main() -> int:
    settle_descriptors()
    try:
        return run(parse(sys.argv[1:], os.environ), os.environ)
    except HelpAsked as asked:
        sys.stdout.write(str(asked))
        return 0
    except UsageError as error:
        sys.stderr.write(f"allranks: {error}\n")
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
