"""So that `python -m unmask` and `torchrun -m unmask` work."""

from unmask.cli.main import command

if __name__ == "__main__":
    command()
