# Two commands do all the set-up:  make demo  and  make test.  Python 3.11 or newer and the package index suffice.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

COUNTING := bench-flat bench-selector bench-fuzz
TIMING := bench-overhead bench-death bench-flood bench-patience bench-outage
.PHONY: demo test lint types lock clean schema record-histories bench bench-peers $(COUNTING) $(TIMING)

demo: $(READY)
	@$(BIN)/python samples/demo.py

# Most tests wait for servers: four at a time take as long as the slowest quarter of them.
test: lint types
	$(BIN)/pytest --numprocesses 4 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Baton needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@mkdir -p .venv/types && ln -sfn ../.. .venv/types/baton  # mypy finds the package by its name there
	@touch $@

# Rewrites the lock with the newest versions that pyproject.toml allows.
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-emit-index-url --quiet --custom-compile-command 'make lock' --output-file requirements.lock

clean:
	rm -rf .venv .baton build *.egg-info

# Writes the schema that editors read anew.
schema: $(READY)
	$(BIN)/baton schema > schema.json

# Records the histories that the tests replay anew. A change that asks for it breaks teams that run while it is rolled out.
record-histories: $(READY)
	$(BIN)/python -m tests.replay.record

# All that is measured of Baton alone: first what counts alone, then, one after the other, what takes time.
bench: $(READY)
	$(MAKE) -j3 $(COUNTING)
	$(MAKE) $(TIMING)

# Measures what a turn leaves behind in runs of up to 10,000 turns.
bench-flat: $(READY)
	$(BIN)/python -m benchmarks.flat

# Measures what a turn takes, beside the least that a durable turn can.
bench-overhead: $(READY)
	$(BIN)/python -m benchmarks.overhead

# Measures both beside other systems, each in an environment of its own in .baton/peers, which is made at first.
bench-peers: $(READY)
	$(BIN)/python -m benchmarks.flat --peers .baton/peers
	$(BIN)/python -m benchmarks.overhead --peers .baton/peers

# Measures what a bad selector costs a team, beside AutoGen's where that is installed: pip install -e '.[peers]'
bench-selector: $(READY)
	$(BIN)/python -m benchmarks.selector

# Kills processes at every kind of moment under teams of all strategies; searches for secrets in what they leave.
bench-death: $(READY)
	$(BIN)/python -m tests.chaos.death --each 2

# Sends 5,100 queries at once to one worker.
bench-flood: $(READY)
	$(BIN)/python -m benchmarks.flood

# Lets 10,000 teams wait on one worker, and wakes some of them.
bench-patience: $(READY)
	$(BIN)/python -m benchmarks.patience

# Lets the model's server fail for a minute under a hundred teams.
bench-outage: $(READY)
	$(BIN)/python -m benchmarks.outage

# Gives odd input to the loader, runs, models and tools; guided by coverage where atheris is installed.
bench-fuzz: $(READY)
	$(BIN)/python -m tests.chaos.fuzz --examples 40
