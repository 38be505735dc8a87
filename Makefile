# Each target does its own set-up: a virtual environment in .venv with what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test times test-times oldest soak check site bench gpu clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[test,check]'
	touch $@

demo: $(VENV)/installed  ## the comparison of the README
	$(BIN)/halfstep compare digits --aa --control

test: $(VENV)/installed  ## all tests but the long campaigns
	$(BIN)/pytest -n auto -m "not slow" --junitxml=build/tests.xml

times:  ## the table of CONTRIBUTING.md, from the last `make test`
	$(BIN)/python tests/durations.py build/tests.xml

test-times: $(VENV)/installed  ## the tests again, with the CPU seconds of each folder
	$(BIN)/pytest -n auto -m "not slow" --times 50

oldest:  ## all tests but the long campaigns, under the oldest torch that is supported
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --editable '.[test]' 'torch==2.11.*' torchvision
	.venv-oldest/bin/pytest -n auto -m "not slow"

soak: $(VENV)/installed  ## the long campaigns, with the trainers that halfstep has doors for
	$(BIN)/pip install --quiet --editable '.[lightning,transformers]' 'lightning==2.6.*' 'transformers==5.*'
	$(BIN)/pytest -m slow

check: $(VENV)/installed  ## linter, formatter, type checker
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

site: $(VENV)/installed  ## the documentation as a site, in build/site; a broken link fails
	$(BIN)/pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(VENV)/installed  ## measure every claim on a quiet machine; results go to benchmarks/results
	$(BIN)/python benchmarks/campaign.py

gpu: $(VENV)/installed  ## what needs a GPU, in ten minutes
	PYTHONPATH=src $(BIN)/python benchmarks/gpu.py

clean:
	rm -rf $(VENV) .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
