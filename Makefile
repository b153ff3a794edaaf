# The two commands a reader needs: `make book` and `make test`. CONTRIBUTING.md has the same steps without make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
SITE := _build/html
LOCK := .ci/requirements.lock
# One more than cores: a test that waits for a browser leaves its core to another.
JOBS ?= 3
# The weekly run replaces these: newest versions, and stored pictures are not compared with what they draw.
INSTALL ?= -r requirements.txt
NBVAL ?= --nbval
# What `make quick` tests: the package on NumPy, torch's CPU and the standard; not the site, the kernels, the chapters.
QUICK := $(patsubst %,tests/test_%.py,arrays heads linear norms rotary softmax ops own_op attention tiled merge extremes multi_head layers \
	workers checks mutations mistakes diagnose bad_input devices import docstrings)
TIER := -m "not thorough"
# What these tests import, besides the package and what it asks for.
TOOLS := PyYAML|array-api-strict|axe-playwright-python|beautifulsoup4|expecttest|hypothesis|nbformat|playwright|pytest|pytest-xdist|scipy
OLDEST := _build/oldest
# The arrays of tests are small, and their workers many: threads of the BLAS only wait for each other.
quick oldest test thorough: export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help locked book pdf proofs compiled quick oldest test thorough links lighthouse page-speed serve notebooks coverage atlas anchors benchmarks gpu format lock clean

help:
	@echo "make book       install what is needed into .venv, build the book, print where it is"
	@echo "make pdf        print the built book into $(SITE)/attnbook.pdf (needs Chromium)"
	@echo "make proofs     let Coq read every proof, and record what each rests on (needs Coq; a minute)"
	@echo "make compiled   compile the fused kernels for GPUs, and record what they need (a minute; after a change of them)"
	@echo "make quick      test the style, the types and the core of the package (two minutes)"
	@echo "make oldest     the same tests on the oldest NumPy, torch and others that the package allows (needs a network)"
	@echo "make test       build the book, then test the package, the notebooks and the site (20 to 30 minutes on two cores)"
	@echo "make thorough   the same with more samples, sizes and screens (an hour; the weekly run)"
	@echo "make lighthouse rate every page as on a phone (needs Chromium; 10 minutes, on an idle machine)"
	@echo "make page-speed measure what a visitor waits for: a result, a key of the search, a first view (5 minutes, idle)"
	@echo "make serve      show the book on http://localhost:8000"
	@echo "make notebooks  run every chapter again and store its outputs"
	@echo "make coverage   run the tests that check a quantity, and record what ran for the page of the book"
	@echo "make atlas      ask diagnose about every incident of the atlas, and record its answers (3 minutes)"
	@echo "make anchors    record the addresses of the built site: none of them may ever disappear"
	@echo "make benchmarks measure speed and memory beside other libraries (two hours, on an idle machine)"
	@echo "make gpu        on a machine with a GPU: run the tests that need one, and measure (8 minutes)"
	@echo "make links      ask every other site that the book links to (needs a network)"
	@echo "make format     format the code, in notebooks too"
	@echo "make lock       write the versions of requirements.txt, and what they pull in, with their hashes (needs a network)"
	@echo "make clean      remove .venv and everything that was built"

# The stamp is newer than what it was installed from, so a second run installs nothing and needs no network.
.venv/installed: requirements.txt pyproject.toml
	@echo "Installing into .venv (a few minutes, the first time only) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(INSTALL)
	@touch $@

# In place of the rule above, where the site is published: only files whose hashes are known.
locked:
	@$(MAKE) .venv/installed INSTALL="--require-hashes -r $(LOCK)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .

# Node comes with .venv. The site is built without these packages too, and then lacks what the message says.
book/node_modules/installed: .venv/installed book/package.json book/package-lock.json book/.npmrc
	@cd book && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --omit=dev --silent && touch node_modules/installed \
		|| echo "npm could not install book/package.json: no page can run code, formulas have the browser's fonts, the search is Sphinx's."
	@$(BIN)/python book/commands/numpy_for_pages.py

# All pages each time: the sitemap names those that a build has written.
book: .venv/installed book/node_modules/installed
	@echo "Building the book ..."
	@$(BIN)/jupyter-book build . --all -W -n --keep-going --quiet
	@echo "The book is built. Open $(CURDIR)/$(SITE)/index.html or run 'make serve'."

proofs: .venv/installed
	@$(BIN)/python book/commands/prove.py

compiled: .venv/installed
	@$(BIN)/python tests/compiled_record.py

# The wheel, and not the sources, on the oldest version of each thing that it asks for; the tests' own tools are ours.
# With pip and setuptools, as Python 3.11 makes an environment: the Triton of that torch imports setuptools.
oldest: .venv/installed
	@$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(OLDEST)
	@$(BIN)/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct ".[torch]"
	@grep -E '^($(TOOLS))==' requirements.txt | $(BIN)/uv pip install --quiet --python $(OLDEST) -r -
	@$(OLDEST)/bin/python -m pytest $(QUICK) $(TIER) -q -n $(JOBS) --dist loadfile

quick: .venv/installed
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/python -m pytest $(QUICK) $(TIER) -q -n $(JOBS) --dist loadfile

thorough: TIER := --hypothesis-profile=explore
thorough: test

# Files in the order in which they were collected: tests/conftest.py puts the longest first.
test: book
	@echo "Checking the style of the code ..."
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@echo "Testing the package and the built site, then comparing every stored output of the chapters ..."
	@$(BIN)/python -m pytest tests $(TIER) -n $(JOBS) --dist loadfile --no-loadscope-reorder
	@$(BIN)/python -m pytest chapters $(NBVAL) --nbval-current-env -p no:cacheprovider -n $(JOBS) --dist loadfile

pdf: book
	@echo "Printing the book ..."
	@$(BIN)/python book/commands/make_pdf.py

# With a doctree folder of its own: the pages of the site are kept.
links: .venv/installed
	@$(BIN)/jupyter-book build . --builder linkcheck --path-output _build/links

lighthouse: book
	@cd book && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --silent && touch node_modules/installed
	@$(BIN)/python book/commands/numpy_for_pages.py
	@$(BIN)/python tests/lighthouse.py

page-speed: book
	@$(BIN)/python tests/page_speed.py

serve: book
	@echo "The book is on http://localhost:8000 (Ctrl-C ends it)."
	@(sleep 1; $(BIN)/python -m webbrowser -t http://localhost:8000) >/dev/null 2>&1 &
	@$(BIN)/python book/commands/serve.py

notebooks: .venv/installed
	@$(BIN)/python book/commands/run_chapters.py

coverage: .venv/installed
	@$(BIN)/python -m pytest tests -q -n $(JOBS) --dist loadfile --record-coverage book/coverage.json

atlas: .venv/installed
	@$(BIN)/python book/commands/record_atlas.py

anchors: book
	@$(BIN)/python tests/anchors.py

# memory.py last: it does not mind what else the machine does.
benchmarks: .venv/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	@for name in cpu multi_head rates crossover techniques orders memory; do $(BIN)/python benchmarks/$$name.py || exit 1; done

gpu: .venv/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[gpu]"
	@benchmarks/gpu_all.sh

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What publishing installs. A second hash for torch: pip prefers its build for the CPU where it finds that, as CI does.
lock: .venv/installed
	@rm -rf $(LOCK) _build/torch
	@$(BIN)/uv pip compile requirements.txt --generate-hashes --no-emit-package attnbook --no-annotate --quiet \
		--custom-compile-command "make lock" --output-file $(LOCK)
	@$(BIN)/python -m pip download --quiet --no-deps --dest _build/torch "$$(grep '^torch==' requirements.txt)"
	@sed -i "s/^torch==.*/&\n    $$($(BIN)/python -m pip hash _build/torch/* | tail -1) \\\\/" $(LOCK)

clean:
	rm -rf .venv book/node_modules book/api _build .pytest_cache .ruff_cache .mypy_cache .hypothesis
