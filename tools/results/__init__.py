"""From the commands of a study to the tables and the figure in docs/: see `python -m tools.results --help`."""
