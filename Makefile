# Two commands matter: `make matrix` and `make test`. They set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: venv matrix plan lock generate build report publish test lint schema ci-local bench-build clean picture bench bench-audit bench-probes

venv: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --editable '.[dev]'
	$(BIN)/python -m compileall -q torchproof
	touch $@

matrix plan lock generate build report publish schema: venv
	$(BIN)/python build.py $@ $(ARGS)

# The steps of the CI pipelines on this machine, shard by shard; ARGS='--compare reports-of-one-run'.
ci-local: venv
	$(BIN)/python ci/local.py $(ARGS)

# docker build + push against assemble + push; ARGS='--cells A,B --other C --docs'.
bench-build: venv
	$(BIN)/python benchmarks/bench_build.py $(ARGS)

test: venv
	$(BIN)/python -m pytest -n auto --dist loadgroup --no-loadscope-reorder $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

clean:
	rm -rf $(VENV) reports build .mypy_cache .ruff_cache .pytest_cache

picture: venv
	$(BIN)/python docs/picture.py $(ARGS)

bench: bench-audit bench-probes

# How long an audit of the largest image takes, and how much memory; ARGS=IMAGE for another one.
bench-audit: venv
	$(BIN)/python benchmarks/bench_audit.py $(ARGS)

# What the harness adds to each CPU probe of a cell that the venv engine built; CELL=ID for another one.
bench-probes: venv
	$(BIN)/python benchmarks/bench_probes.py $(CELL)
