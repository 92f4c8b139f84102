"""From the results.json files of a study to its page: `python -m tools.results slim`, then `page`.

`slim` keeps of a big results.json what a reader may want to check (docs/results/NAME.json, committed); `page` makes
every table and figure from these and from docs/results/studies.yaml, so that no number of theirs was typed by hand.
"""
