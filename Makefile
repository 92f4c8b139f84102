# `make test` and `make demo` need nothing but python3: each makes .venv first, pinned by constraints.txt.
VENV := .venv
RUN := $(VENV)/bin

.PHONY: install test demo lint types soak clean
.DEFAULT_GOAL := test

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: install
	$(RUN)/python -m pytest

demo: install
	$(RUN)/unmask demo

lint: install
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: install
	$(RUN)/mypy

# kills a small training run at 100 random moments and compares the final weights: about ten minutes, not part of CI
soak: install
	$(RUN)/python tools/soak.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
