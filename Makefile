# make train   install into .venv, evolve a population from wide draws, show what was found and how (runs/demo/report.html)
# make test    install into .venv, lint, type-check and run the tests
# make test-slow  the slowest tests, which `make test` leaves out: whole runs, the code of pages, notebooks, the site
# make test-faults  kill, break and poison it, and see that nothing is lost (RELIABILITY_TIER=nightly: for two hours)
# make test-lowest  the tests once more with the oldest versions of the dependencies that pyproject.toml allows (by hand)
# make lint    ruff and pyright alone
# make docs    build the documentation site into build/docs, without warnings and without a network
# make bench   every table of the engine in benchmarks/README.md (an hour; makes venvs for the peers)
#
# constraints.txt pins the CPU build of torch. On a machine with a GPU: make train CONSTRAINTS=

PYTHON ?= python3
CONSTRAINTS ?= -c constraints.txt
BIN := .venv/bin
LOWEST := .venv-lowest
PYRIGHT = $(BIN)/pyright --pythonpath $(BIN)/python
# bytecode is written, because each process that a test starts would compile the package again: 0.7 s of 4.6 s
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest \
	--numprocesses auto --maxprocesses 8 --dist worksteal

# the first target, so that `make` alone prints it
help:
	@sed -n '/^# make/s/^# //p' Makefile

.PHONY: help train test test-slow test-faults test-lowest lint format docs bench clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable '.[dev]'
	touch $@

train: .venv/installed
	$(BIN)/agilerl-like demo

# pyright uses one core, so it runs beside the tests; its findings are printed below theirs
test: format
	@mkdir -p build
	@$(PYRIGHT) > build/pyright.log 2>&1 & types=$$!; \
	$(PYTEST) -m "not slow" --ignore=tests/faults; tests=$$?; \
	wait $$types; types=$$?; echo "$(PYRIGHT)"; cat build/pyright.log; \
	test $$tests -eq 0 && test $$types -eq 0

test-slow: .venv/installed
	$(PYTEST) -m slow --ignore=tests/faults

test-faults: .venv/installed
	$(PYTEST) tests/faults

# minari needs a newer numpy, and sphinx is for the site alone
$(LOWEST)/installed: pyproject.toml constraints.txt tests/lowest_versions.py
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tests/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet $(CONSTRAINTS) -c $(LOWEST)/constraints.txt \
		--editable '.[atari,box2d,cmaes,export,games,hub,minatar,minigrid,mujoco,multi-agent,notebook,optuna,plot,tensorboard,video]' \
		hatchling hypothesis pytest pytest-timeout pytest-xdist
	touch $@

test-lowest: $(LOWEST)/installed
	$(subst $(BIN),$(LOWEST)/bin,$(PYTEST)) --ignore=tests/faults --ignore=tests/test_site.py

lint: format
	$(PYRIGHT)

format: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: .venv/installed
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html tutorials build/docs
	@echo build/docs/index.html

bench: .venv/installed
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv
