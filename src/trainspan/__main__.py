"""`python -m trainspan` is `trainspan`."""

import sys

from trainspan.cli.main import main

sys.exit(main())
