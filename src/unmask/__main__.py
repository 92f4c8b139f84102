"""So that `python -m unmask` and `torchrun -m unmask` work."""

import sys

from unmask.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
