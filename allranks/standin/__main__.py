"""`python -m allranks.standin`."""

import sys

from allranks.standin.cli import main

sys.exit(main())
