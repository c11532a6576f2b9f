# `make demo` sets up what users need, `make test` and most others what developers need as well. They need Python 3.11 or
# newer and access to the package index.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
READY := .venv/.ready

# Pip, not uv: it reads the machine's pip.conf, where mirrors, certificates and proxies are. Only errors are shown. What is
# imported is compiled then: compiling everything takes longer than the whole demo.
INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-compile

PYTEST := $(BIN)/pytest --numprocesses 4 --dist worksteal --durations 25

# Compiled files are kept, since the tests start many Python processes.
export PYTHONDONTWRITEBYTECODE :=

# Benchmarks that count, which can run at once, and benchmarks that measure time, which cannot.
COUNTING := bench-history-size bench-selector bench-fuzz
TIMING := bench-proofs bench-hostile bench-single bench-functions bench-overhead bench-kills bench-interruptions bench-control bench-query-burst bench-idle-teams bench-approvals bench-outage bench-conversation bench-stalls bench-telemetry bench-live-words bench-gateway bench-gateway-kills bench-event-cursors bench-console bench-large bench-large-journal bench-fork bench-tenants
RECORDING := record-histories add-history replace-history replace-stored-names
.PHONY: demo image test test-all test-versions pytest pytest-all lint types lock clean schema reference screenshots bench bench-mcp bench-alerts bench-older-sdks bench-peers $(RECORDING) $(COUNTING) $(TIMING)

demo: $(INSTALLED)
	@$(BIN)/python samples/demo.py

# The image of the Dockerfile, named by its version:  make image IMAGE=registry.example.com/baton ENGINE=podman
ENGINE ?= docker
IMAGE ?= baton
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
image:
	$(ENGINE) build --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git describe --always --dirty --abbrev=40 --exclude '*') \
	  --tag $(IMAGE):$(VERSION) .

# The linter; then the quick tests, and at the same time the type checker, since tests mostly wait for servers.
test: lint
	@$(MAKE) --no-print-directory --jobs 2 types pytest

# The same with more tests: also those that kill processes, drive a cluster's tools, or try hundreds of random examples. Only
# `make bench-proofs` runs the slow ones.
test-all: lint
	@$(MAKE) --no-print-directory --jobs 2 types pytest-all

# Some tests with the lowest and the newest versions of all libraries:  make test-versions PYTHONS="python3.11 python3.13"
test-versions: $(READY)
	$(BIN)/python -m tests.versions $(PYTHONS)

pytest: $(READY)
	$(PYTEST)

# With a process less: these tests start more processes of their own, and wait for them.
pytest-all: $(READY)
	$(PYTEST) --numprocesses 3 --full

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	nice $(BIN)/mypy

# What a user installs: the package, and what it imports. Pip is first: that of Python 3.11 takes twice the time for it.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Baton needs Python 3.11 or newer: make PYTHON=...")'
	@echo "Making a virtual environment in .venv ..."
	@$(PYTHON) -m venv --clear .venv
	@grep -A 2 '^pip==' requirements.lock | $(INSTALL) --require-hashes --requirement /dev/stdin
	@echo "Installing Baton's $$(grep -c == requirements.lock) dependencies: 90 MB to download, 380 MB on disk ..."
	@$(INSTALL) --require-hashes --requirement requirements.lock
	@echo "Installing Baton ..."
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@pwd -P > $@

# The scripts in .venv name this folder: after it was moved or copied, they are made again.
ifneq ($(shell cat $(INSTALLED) 2> /dev/null),$(CURDIR))
.PHONY: $(INSTALLED)
endif

# What developers need as well. All is compiled here: some code draws warnings when it is, which are errors in the tests.
$(READY): $(INSTALLED) requirements-dev.lock
	@echo "Installing what developers need as well, $$(grep -c == requirements-dev.lock) packages in all:" \
	  "another 120 MB to download, 490 MB on disk ..."
	@$(INSTALL) --require-hashes --requirement requirements-dev.lock
	@echo "Compiling them ..."
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # some packages hold files that are no Python, or too new
	@mkdir -p .venv/types && ln -sfn ../.. .venv/types/baton  # mypy finds the package by its name there
	@touch $@

# Updates the locks to the newest versions that pyproject.toml allows: for developers; for users, with the extras that need
# no account of a cloud; and for the image, with all extras. The first one decides on the versions, since it holds all
# packages of the others.
LOCAL_EXTRAS := worker cli server mcp a2a gateway evals otel postgres encryption
LOCK = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
  --custom-compile-command 'make lock'
lock: $(READY)
	$(LOCK) --group dev --extra all --upgrade --output-file requirements-dev.lock
	$(LOCK) --group build $(addprefix --extra ,$(LOCAL_EXTRAS)) --constraint requirements-dev.lock \
	  --output-file requirements.lock
	$(LOCK) --group build --extra all --constraint requirements-dev.lock \
	  --output-file requirements-extras.lock

clean:
	rm -rf .venv .baton build *.egg-info

# Writes schema.json, which editors use for manifests, and the schema of the protocol with the types of the TypeScript client.
schema: $(INSTALLED)
	$(BIN)/baton schema > schema.json
	$(BIN)/baton schema --protocol > clients/protocol.schema.json
	@if command -v npm > /dev/null; then cd clients/typescript && npm ci --no-audit --no-fund --silent && npm run --silent generate; \
	  else echo "There is no npm: clients/typescript/src/protocol.ts is not written anew."; fi
	$(BIN)/baton schema --scripts > script.schema.json

# Writes the tables of fields into docs/reference.md.
reference: $(READY)
	$(BIN)/python -m tests.harness.field_tables
	$(BIN)/python -m tests.harness.python_reference

# Takes the pictures of docs/console.md again: make screenshots PICTURES="runs decide"
screenshots: $(READY)
	$(BIN)/python -m tests.harness.screenshots $(PICTURES)

# Records new scenarios, and new stored names and shapes, for the replay tests. Never changes what is recorded.
record-histories: $(READY)
	$(BIN)/python -m tests.replay.record

# Records one more history of a scenario in addition to the old ones:  make add-history NAME=graph
add-history: $(READY)
	$(BIN)/python -m tests.replay.record --add $(NAME)

# Deletes the recorded histories of a scenario and records it again. Says what that breaks, and asks first.
replace-history: $(READY)
	$(BIN)/python -m tests.replay.record --replace $(NAME)

# Writes the stored names and shapes even if some vanish or change. Says what that breaks, and asks first.
replace-stored-names: $(READY)
	$(BIN)/python -m tests.replay.record --replace-stored-names

# All benchmarks of Baton alone.
bench: $(READY)
	$(MAKE) -j3 $(COUNTING)
	$(MAKE) $(TIMING)

# Bytes of history and journal per turn, in runs of up to 10,000 turns.
bench-history-size: $(READY)
	$(BIN)/python -m benchmarks.history_size

# The largest shapes of runs: 240 agents with tools at once, and a panel of 40 seats and 50 rounds. Over 20,000 calls: ten minutes
# on an idle machine with two cores.
bench-large: $(READY)
	$(BIN)/python -m benchmarks.large_shapes

# Writes to a journal of three million messages, while they are deleted.
bench-large-journal: $(READY)
	$(BIN)/python -m benchmarks.large_journal

# The runs of a tenant beside a flood of another, without and with Quotas.
bench-tenants: $(READY)
	$(BIN)/python -m benchmarks.tenants

# The time of a turn, compared with the least that a durable turn can take.
bench-overhead: $(READY)
	$(BIN)/python -m benchmarks.overhead

# The time of a question to one agent: many at once, and one after the other; then with the journal in PostgreSQL.
bench-single: $(READY)
	$(BIN)/python -m benchmarks.single
	$(BIN)/python -m benchmarks.single --postgres

# 100 runs with Python functions, which the program executes, beside 100 without.
bench-functions: $(READY)
	$(BIN)/python -m benchmarks.functions

# The same of other systems, each in a virtual environment in .baton/peers, which is made at first.
bench-peers: $(READY)
	$(BIN)/python -m benchmarks.history_size --peers .baton/peers
	$(BIN)/python -m benchmarks.single --peers .baton/peers
	$(BIN)/python -m benchmarks.overhead --peers .baton/peers --long

# Baton as an MCP client of the reference servers, and in the scenarios of the conformance suite. Needs npm.
bench-mcp: $(READY)
	$(BIN)/python -m benchmarks.mcp

# Baton as a client of servers that are made with older SDKs of MCP and A2A, which it installs in .baton/peers.
bench-older-sdks: $(READY)
	$(BIN)/python -m benchmarks.older_sdks

# The cost of a bad selector, compared with AutoGen's if that is installed: pip install -e '.[peers]'
bench-selector: $(READY)
	$(BIN)/python -m benchmarks.selector

# The tests that `make test-all` leaves out, as each of them takes over seven seconds: half an hour.
bench-proofs: $(READY)
	$(PYTEST) --numprocesses 3 --slow

# Kills workers and servers under teams of all strategies, and under calls of MCP servers, A2A servers and engines, which
# are killed as well. Searches for leaked secrets.
bench-kills: $(READY)
	$(BIN)/python -m tests.chaos.kills --each 2
	$(BIN)/python -m tests.chaos.budget_kills --each 2
	$(BIN)/python -m tests.chaos.remote_kills --each 3

# Freezes one of two workers during calls, cuts its connections, and changes its clock: counts second effects and payments.
bench-interruptions: $(READY)
	$(BIN)/python -m tests.chaos.interruptions

# Stops and continues a worker while its runs are queried and steered: counts the histories that cannot be replayed.
bench-stalls: $(READY)
	$(BIN)/python -m tests.chaos.stalls

# Storms of signals and updates on running teams, with kills of the worker: counts what is lost and what stands still.
# Then the same with runs that an application's workflows start.
bench-control: $(READY)
	$(BIN)/python -m tests.chaos.control
	$(BIN)/python -m tests.chaos.control --application 1 --each 2

# Manifests, values and answers that are meant to block a worker, while another run has to progress.
bench-hostile: $(READY)
	$(BIN)/python -m tests.chaos.hostile
	$(BIN)/python -m tests.chaos.hostile --application 1 --examples 1 --seconds 1

# A query in a conversation of 10,000 messages, beside one in an empty conversation.
bench-conversation: $(READY)
	$(BIN)/python -m benchmarks.conversation

# A fork of a run of 3,000 turns at turn 2,900, beside a new run: the time to the first model call.
bench-fork: $(READY)
	$(BIN)/python -m benchmarks.fork

# The time of a turn with traces, compared with that without them.
bench-telemetry: $(READY)
	$(BIN)/python -m benchmarks.telemetry

# The time to the first event for a reader that goes on from a cursor, in a run of 3,000 turns.
bench-event-cursors: $(READY)
	$(BIN)/python -m benchmarks.event_cursors

# The time until the console shows a run of 10,000 turns, and of a frame while it is scrolled. It needs Chromium.
bench-console: $(READY)
	$(BIN)/python -m benchmarks.console

# Clients of all protocols of the gateway, while gateways, worker, Temporal server and PostgreSQL are killed.
bench-gateway-kills: $(READY)
	$(BIN)/python -m benchmarks.gateway_kills

# The gateway beside a plain proxy of the same words, and with idle streams.
bench-gateway: $(READY)
	$(BIN)/python -m benchmarks.gateway

# The time from a word at the model to the same word in a program.
bench-live-words: $(READY)
	$(BIN)/python -m benchmarks.live_words

# 5,100 queries at once on one worker.
bench-query-burst: $(READY)
	$(BIN)/python -m benchmarks.query_burst

# 10,000 paused teams on one worker; some of them are resumed.
bench-idle-teams: $(READY)
	$(BIN)/python -m benchmarks.idle_teams

# 10,000 calls that wait for approval on one worker; some of them are approved.
bench-approvals: $(READY)
	$(BIN)/python -m benchmarks.waiting_approvals

# Breaks what each alert is about, with Prometheus; cases with a full disk need root.
bench-alerts: $(READY)
	$(BIN)/python -m benchmarks.alerts

# A model server that fails for a minute under a hundred teams.
bench-outage: $(READY)
	$(BIN)/python -m benchmarks.outage

# Malformed input for the loader, runs, models and tools, guided by coverage if atheris is installed; and new examples for
# the tests with random ones.
bench-fuzz: $(READY)
	$(BIN)/python -m tests.chaos.fuzz --examples 40
	$(PYTEST) --hypothesis-profile default tests/workflows/test_fork.py tests/workflows/test_graph.py \
	  tests/durability/test_random_teams.py tests/activities/test_conversations.py tests/activities/test_quotas.py \
	  tests/activities/test_accounts.py tests/manifests/test_redaction.py tests/manifests/test_schema.py
