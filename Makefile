# Everything below works on a fresh machine with Python 3.11+, pip and make. No root, no Redis, no Docker: the first
# target that needs it makes .venv, and the stamp inside says what was installed, so the second run starts at once.

.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV  := .venv
BIN   := $(VENV)/bin
PY    := $(BIN)/python
STAMP := $(VENV)/.installed

# The interpreter that makes the venv: the first one that is new enough, or what you name (make PYTHON=python3.13 test).
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

TYPED := $(wildcard fennelq tests examples benchmarks docs/*.py)

##@ Try it
.PHONY: demo
demo: $(STAMP) ## an embedded server, a worker and a handful of jobs, in 15 seconds
	$(PY) -m examples.demo

##@ Work on it
# The tests start hundreds of interpreters. Without bytecode each of them would compile fennelq again.
unexport PYTHONDONTWRITEBYTECODE

# More processes than two cores: most tests wait for a server or a worker.
AT_ONCE ?= 4

.PHONY: test
test: $(STAMP) ## the whole suite (T=tests/broker for a part, ARGS="-k retry -x" for pytest)
	$(PY) -m pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder $(ARGS) $(T)

# The interpreters of `test-all`: of each version the first that really runs, on PATH or among those of pyenv (whose own
# python3.12 is a command that fails unless that version is selected). Each has an environment of its own.
VERSIONS ?= 3.11 3.12 3.13 3.14
FOUND     = $(foreach v,$(VERSIONS),$(shell for p in python$(v) \
	  "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$(v).*/bin/python; do \
	  $$p -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(v)")' 2>/dev/null && { echo $(v)=$$p; break; }; done))

.PHONY: test-all
test-all: ## the whole suite on every Python from 3.11 on that is here (VERSIONS="3.12 3.13" for some)
	@[ -n '$(strip $(FOUND))' ] || { echo 'none of Python $(VERSIONS) is here'; exit 1; }
	@echo 'Python found: $(FOUND)'
	@failed=; for one in $(FOUND); do v=$${one%%=*}; \
	  echo "== Python $$v ($${one#*=})"; \
	  $(MAKE) --no-print-directory test VENV=.venv-$$v PYTHON=$${one#*=} || failed="$$failed $$v"; \
	done; \
	echo "== Python found and run:$(foreach one,$(FOUND), $(firstword $(subst =, ,$(one)))); failed:$${failed:- none}"; \
	[ -z "$$failed" ]

.PHONY: chaos
chaos: $(STAMP) ## kill, pause and cut off workers for an hour (SEED=1 does it again, DEMO=1 takes 20 seconds)
	$(if $(DEMO),$(PY) -m tests.chaos.demo,$(PY) -m pytest -p tests.chaos.long tests/chaos $(ARGS))

.PHONY: mutate
mutate: $(STAMP) ## take writes and guards out of scripts and modules: do the tests notice? (S="fetch consumer" for a part)
	$(PY) -m tests.mutation $(S) $(ARGS)

.PHONY: check
check: $(STAMP) ## format, lint, both type checkers, import rules, generated pages up to date
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy $(TYPED)
	$(PY) -m basedpyright --pythonpath $(PY)
	$(BIN)/lint-imports --no-logo
	@if [ -f docs/generate.py ]; then echo '$(PY) docs/generate.py --check'; $(PY) docs/generate.py --check; fi

.PHONY: fmt
fmt: $(STAMP) ## format and apply every safe lint fix
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

.PHONY: docs
docs: $(STAMP) ## write the generated reference pages anew
	$(PY) docs/generate.py

.PHONY: proto
proto: $(STAMP) ## generate the code of the gRPC messages anew
	$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. fennelq/grpc/fennelq.proto
	@# Half of it are classes of an experimental API, which fennelq does not use.
	sed '/^ # This class is part of an EXPERIMENTAL API/,/^class [A-Za-z]*Stub/{/^class [A-Za-z]*Stub/!d;}' \
	  fennelq/grpc/fennelq_pb2_grpc.py >$(STAMP).grpc && mv $(STAMP).grpc fennelq/grpc/fennelq_pb2_grpc.py

.PHONY: pictures
pictures: $(STAMP) ## make the pictures of the guides anew, from a real run
	$(PY) docs/pictures.py

.PHONY: bench
bench: $(STAMP) ## measure against a hand-written loop (PEERS=arq,saq,… measures them too)
	$(PY) -m benchmarks $(if $(PEERS),--peers $(PEERS)) $(ARGS)

##@ House-keeping
.PHONY: setup
setup: $(STAMP) ## make .venv (the other targets do it when needed)

.PHONY: clean
clean: ## remove .venv, caches and built files (data in .fennelq stays)
	rm -rf $(VENV) .venv-3.* dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## this list
	@awk 'BEGIN { FS = ":.*## "; print "make <target>" } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Some distributions ship Python without ensurepip; their own pip then fills the empty venv.
$(STAMP): pyproject.toml
	@[ -n '$(PYTHON)' ] || { echo 'fennelq needs Python 3.11 or newer; make PYTHON=/path/to/python … names one'; exit 1; }
	@echo 'Setting up $(VENV) with $(PYTHON) (the first time this takes a minute)'
	@$(PY) -c '' 2>/dev/null || rm -rf $(VENV)
	@$(PY) -m pip --version >/dev/null 2>&1 \
	  || $(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(PY) install -qq pip; }
	@$(PY) -m pip install -qq --disable-pip-version-check --editable '.[embedded,top,uvloop,dev]'
	@touch $@
