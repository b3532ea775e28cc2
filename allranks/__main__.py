"""`python -m allranks`."""

import sys

from allranks.cli import main

sys.exit(main())
