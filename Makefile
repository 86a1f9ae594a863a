# The main commands are `make demo` and `make test`. Both create a virtual environment, .venv, if needed.
# Other interpreter: make PYTHON=/path/to/python3.12 demo.   Arguments of pytest: make test ARGS="-k query".
# Where no Java 17 or newer is found, they take that of a Python package: tools/with_java.sh.

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
JOBS ?= auto
WITH_JAVA = PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" sh tools/with_java.sh $(VENV) $(BIN)/python
PYTEST = $(WITH_JAVA) -m pytest -n $(JOBS) --maxprocesses=4
export PYTHON
# tests start hundreds of interpreters: each would compile the library, and pytest its tests
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow soak lint docs bench clean

help:
	@echo "make demo        build and query a cube from a year of real flights and weather"
	@echo "make test        run the tests, but for the slow ones"
	@echo "make test-slow   run the slow tests: clusters, servers, kills, all interleavings, ..."
	@echo "make soak        run random tests for a long time (as root, also on a real file system)"
	@echo "make lint        check style, types and layers"
	@echo "make docs        build the documentation in docs/_build/html"
	@echo "make bench       compare the performance with other engines"
	@echo "make clean       remove .venv and all build products"

demo: $(VENV)/.installed-demo
	@$(WITH_JAVA) examples/nycflights.py $(ARGS)

test: $(VENV)/.installed-dev
	@$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed-dev
	@$(BIN)/python tools/install_azurite.py $(VENV)/azurite
	@$(PYTEST) -m slow $(ARGS)

# tests/soak is only collected when it is named
soak: $(VENV)/.installed-dev
	@KARTOTHEK_CUBE_KILLS=100 KARTOTHEK_CUBE_COMMITS=50 \
		$(BIN)/python -m pytest tests/soak tests/faults/test_kill.py tests/faults/test_races.py $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_layers.py

docs: $(VENV)/.installed-dev
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "written to docs/_build/html/index.html"

bench: $(VENV)/.installed-bench
	@$(WITH_JAVA) asv_bench/compare.py $(ARGS)

clean:
	rm -rf $(VENV) build dist docs/_build asv_bench/.asv ./*.egg-info

$(VENV)/.installed-demo: extras := demo
$(VENV)/.installed-dev: extras := all,demo,test,lint,docs
$(VENV)/.installed-bench: extras := bench

# Reinstall only if the declared dependencies have changed since this stamp was written.
$(VENV)/.installed-%: setup.cfg setup.py pyproject.toml | $(BIN)/python
	@echo "Installing kartothek_cube[$(extras)] into $(VENV); the first time takes a few minutes ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$(extras)]"
	@touch $@

$(BIN)/python:
	@sh tools/make_venv.sh $(VENV)
