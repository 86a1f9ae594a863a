# The main commands are `make demo` and `make test`. Both create a virtual environment, .venv, if needed.
# Other interpreter: make PYTHON=/path/to/python3.12 demo.   Arguments of pytest: make test ARGS="-k query".

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
JOBS ?= auto
export PYTHON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test soak lint docs bench clean java

help:
	@echo "make demo    build and query a cube from a year of real flights and weather"
	@echo "make test    run the tests"
	@echo "make soak    run the slow tests (as root, including those on a real file system)"
	@echo "make lint    check style, types and layers"
	@echo "make docs    build the documentation in docs/_build/html"
	@echo "make bench   compare the performance with other engines"
	@echo "make clean   remove .venv and all build products"

demo: java $(VENV)/.installed-demo
	@PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" $(BIN)/python examples/nycflights.py $(ARGS)

test: java $(VENV)/.installed-dev
	@$(BIN)/python tools/install_azurite.py $(VENV)/azurite
	@PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" $(BIN)/python -m pytest -n $(JOBS) --maxprocesses=4 $(ARGS)

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

bench: java $(VENV)/.installed-bench
	@$(BIN)/python asv_bench/compare.py $(ARGS)

clean:
	rm -rf $(VENV) build dist docs/_build asv_bench/.asv ./*.egg-info

# Spark needs Java. Check it first, with a clear message, instead of failing in a test.
java:
	@sh tools/check_java.sh

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
