PYTHON ?= python3
BACKEND ?= jax
VENV := .venv
BIN := $(VENV)/bin
BACKENDS := tensorflow jax torch

.PHONY: demo test test-quick lint clean

# Each stamp is an install that is up to date: a second run installs nothing.
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.created pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt \
		--editable ".[tensorflow,demo]"
	touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt \
		--editable ".[tensorflow,jax,tpu,torch,hub,export,dev]"
	touch $@

demo: $(VENV)/.demo
	$(BIN)/keras-mk demo

test: $(VENV)/.dev
	$(BIN)/python tests/run_all.py $(BACKENDS)

test-quick: $(VENV)/.dev
	$(BIN)/python tests/run_all.py $(BACKEND) -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV)
