# `make test` and `make demo` need nothing but python3 (3.11 or newer): each makes .venv first, pinned by constraints.txt.
# Without a GPU, name the index of PyTorch's CPU builds (their install page has it) in PIP_EXTRA_INDEX_URL, once.
VENV := .venv
RUN := $(VENV)/bin

.PHONY: install torch test demo playground lint types soak clean
.DEFAULT_GOAL := test

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	@$(MAKE) --no-print-directory torch
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# on Linux pip takes the CUDA build of torch, some gigabytes, unless a CPU build is at hand: nobody without a GPU wants it
torch:
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && [ -z "$(CUDA)" ] && ! command -v nvidia-smi >/dev/null && \
	  ! $(RUN)/python -m pip show --quiet torch 2>/dev/null && ! $(RUN)/python -m pip install --dry-run --no-deps \
	  --disable-pip-version-check -c constraints.txt torch 2>/dev/null | grep -q '+cpu'; then \
	  echo "No NVIDIA GPU here, and pip would download torch for CUDA. Set PIP_EXTRA_INDEX_URL to the index of CPU builds"; \
	  echo "that PyTorch's install page names and run make again; or take the CUDA build all the same: make CUDA=1"; \
	  exit 1; fi

test: install
	$(RUN)/python -m pytest

demo: install
	$(RUN)/unmask demo

# the static page of docs/playground/: needs npm, for onnxruntime-web
playground: install
	$(RUN)/python -m tools.playground

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
