# The two commands a reader needs: `make book` and `make test`. CONTRIBUTING.md has the same steps without make.

PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
# What installs: pip, which every Python has; a module is compiled when it is used. CI says "uv pip install", which knows where torch has its build for the CPU.
PIP ?= $(BIN)/python -m pip install --disable-pip-version-check --no-compile
SITE := _build/html
LOCK := .ci/requirements.lock
# Workers of the package's lane. The site's has one, and its browser.
JOBS ?= 2
# The weekly run replaces these: newest versions, and stored pictures are not compared with what they draw.
INSTALL ?= -r requirements.txt
INSTALL_TOOLS ?= -r tests/requirements.txt
NBVAL ?= --nbval
PACKAGE := $(addprefix tests/,core torch fused diagnose ranks book house)
# What `make quick` tests: the package on NumPy, torch's CPU and the standard; not the site, the kernels, the chapters.
QUICK := tests/core tests/diagnose/test_mistakes.py tests/house/test_import.py tests/house/test_docstrings.py
TIER := -m "not thorough"
# What these tests import, besides the package and what it asks for.
TOOLS := PyYAML|array-api-strict|axe-playwright-python|beautifulsoup4|expecttest|hypothesis|nbformat|playwright|pytest|pytest-xdist|scipy
OLDEST := _build/oldest
# The arrays of tests are small, and their workers many: threads of the BLAS only wait for each other.
export PYTHONUNBUFFERED := 1
quick oldest test thorough: export OPENBLAS_NUM_THREADS ?= 1

.PHONY: package-lane chapters-lane site-lane help locked book pdf proofs quick oldest test thorough links lighthouse page-speed serve notebooks coverage atlas anchors power compiled benchmarks gpu format lock clean

help:
	@echo "make book       install what is needed into .venv, build the book, print where it is"
	@echo "make pdf        print the built book into $(SITE)/attnbook.pdf (needs Chromium)"
	@echo "make proofs     let Coq read every proof, and record what each rests on (needs Coq: 156 s to read, and a second a theorem)"
	@echo "make compiled   compile the fused kernels for GPUs, and record what they need (a minute; after a change of them)"
	@echo "make quick      test the style, the types and the core of the package (two minutes)"
	@echo "make oldest     the same tests on the oldest NumPy, torch and others that the package allows (needs a network)"
	@echo "make test       build the book, then test the package, the notebooks and the site (nine minutes on two cores)"
	@echo "make thorough   the same with more samples, sizes and screens (an hour; the weekly run)"
	@echo "make lighthouse rate every page as on a phone (needs Chromium; 10 minutes, on an idle machine)"
	@echo "make page-speed measure what a visitor waits for: a result, a key of the search (5 minutes, idle)"
	@echo "make serve      show the book on http://localhost:8000"
	@echo "make notebooks  run every chapter again and store its outputs"
	@echo "make coverage   run the tests that check a quantity, and record what ran for the page of the book"
	@echo "make atlas      ask diagnose about every incident of the atlas, and record its answers (3 minutes)"
	@echo "make power      plant mutants in the package, and say which of them its tests do not notice (an hour)"
	@echo "make anchors    record the addresses of the built site: none of them may ever disappear"
	@echo "make benchmarks measure speed and memory beside other libraries (two hours, on an idle machine)"
	@echo "make gpu        on a machine with a GPU: run the tests that need one, and measure (8 minutes)"
	@echo "make links      ask every other site that the book links to (needs a network)"
	@echo "make format     format the code, in notebooks too"
	@echo "make lock       write the versions of both requirements.txt with their hashes (needs a network)"
	@echo "make clean      remove .venv and everything that was built"

# The stamp is newer than what it was installed from, so a second run installs nothing and needs no network. Where there is
# none, an earlier run was interrupted, and .venv is made anew. pip shows a bar for each file that it downloads.
.venv/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
		sys.exit(v < (3, 11) and "attnbook needs Python 3.11 or newer; this is %d.%d.%d" % v[:3])'
	@test -e $@ || $(PYTHON) -m venv --clear .venv
	@rm -f $@
	@echo "Installing what builds the book into .venv (a few minutes, the first time only) ..."
	@$(PIP) $(INSTALL)
	@touch $@

# What tests it, beside that.
.venv/tools: .venv/installed tests/requirements.txt
	@echo "Installing what tests the book into .venv (the first time only) ..."
	@$(PIP) $(INSTALL_TOOLS)
	@touch $@

# In place of the rule above, where the site is published: only files whose hashes are known.
locked:
	@$(MAKE) .venv/installed INSTALL="--require-hashes -r $(LOCK)"
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch .venv/tools

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

# The wheel, and not the sources, on the oldest version of each thing that it asks for; the tests' own tools are ours.
# With pip and setuptools, as Python 3.11 makes an environment: the Triton of that torch imports setuptools.
oldest: .venv/tools
	@$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(OLDEST)
	@$(BIN)/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct ".[torch]"
	@grep -hE '^($(TOOLS))==' requirements.txt tests/requirements.txt | $(BIN)/uv pip install --quiet --python $(OLDEST) -r -
	@$(OLDEST)/bin/python -m pytest $(QUICK) tests/diagnose/test_diagnose.py $(TIER) -q -n $(JOBS) --dist loadfile

quick: .venv/tools
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/python -m pytest $(QUICK) $(TIER) -q -n $(JOBS) --dist loadfile

thorough:
	@$(MAKE) --no-print-directory test TIER="--hypothesis-profile=explore"

# Three lanes beside each other, each with its own tests: the package; the chapters; the site, from its build on.
# Each line begins with its lane's name.
test: .venv/tools book/node_modules/installed
	@$(MAKE) --no-print-directory --keep-going -j3 lane-package lane-chapters lane-site

# The site's is the longest chain, and one worker: the others leave it the core that it needs.
lane-package lane-chapters: NICE := nice -n 4
lane-%:
	@$(NICE) bash -o pipefail -c '$(MAKE) --no-print-directory $*-lane 2>&1 | sed -u "s/^/$*: /"'

# Files in the order in which they were collected: tests/conftest.py puts the longest first.
package-lane:
	@echo "Checking the style of the code ..."
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@echo "Testing the package ..."
	@$(BIN)/python -m pytest $(PACKAGE) $(TIER) -n $(JOBS) --dist loadfile --no-loadscope-reorder

chapters-lane:
	@echo "Comparing every stored output of the chapters ..."
	@$(BIN)/python -m pytest chapters $(NBVAL) --nbval-current-env -p no:cacheprovider

site-lane: book
	@echo "Testing the built site ..."
	@$(BIN)/python -m pytest tests/site $(TIER)

pdf: .venv/tools book
	@echo "Printing the book ..."
	@$(BIN)/python book/commands/make_pdf.py

# With a doctree folder of its own: the pages of the site are kept.
links: .venv/installed
	@$(BIN)/jupyter-book build . --builder linkcheck --path-output _build/links

lighthouse: .venv/tools book
	@cd book && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --silent && touch node_modules/installed
	@$(BIN)/python book/commands/numpy_for_pages.py
	@$(BIN)/python benchmarks/lighthouse.py

page-speed: .venv/tools book
	@$(BIN)/python benchmarks/page_speed.py

serve: book
	@echo "The book is on http://localhost:8000 (Ctrl-C ends it)."
	@(sleep 1; $(BIN)/python -m webbrowser -t http://localhost:8000) >/dev/null 2>&1 &
	@$(BIN)/python book/commands/serve.py

notebooks: .venv/tools
	@$(BIN)/python book/commands/run_chapters.py

coverage: .venv/tools
	@$(BIN)/python -m pytest tests -q -n $(JOBS) --dist loadfile --record-coverage book/coverage.json

atlas: .venv/tools
	@$(BIN)/python book/commands/record_atlas.py

anchors: .venv/tools book
	@$(BIN)/python tests/site/anchors.py

# A sample of mutants, another one each week: which of them no test of the core notices.
SEED ?= $(shell date +%G%V)
power: .venv/tools
	@of() { tests=$$1; shift; for do in reach "run $$* --seed $(SEED)" table; do \
		PYTHONPATH=tests $(BIN)/python -m power $$do $$tests || return 1; done; }; \
		of "tests/core/test_*.py" --planted --mutants 20 && \
		of "$(addsuffix /test_*.py,$(addprefix tests/,torch fused diagnose ranks))" --mutants 5 --rooms torch parallel diagnose kernels

# On a machine with Triton's compilers; after a change of the kernels.
compiled: .venv/tools
	@$(BIN)/python tests/fused/compiled_record.py

# memory.py last: it does not mind what else the machine does.
benchmarks: .venv/tools
	@$(PIP) -r benchmarks/requirements.txt
	@for name in cpu multi_head rates crossover techniques orders memory; do $(BIN)/python benchmarks/$$name.py || exit 1; done

gpu: .venv/tools
	@$(PIP) -e ".[gpu]"
	@benchmarks/gpu_all.sh

format: .venv/tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What publishing installs, with torch's build for the CPU: uv knows where that is.
lock: TORCH ?= --torch-backend cpu
lock: .venv/tools
	@$(BIN)/uv pip compile requirements.txt tests/requirements.txt --generate-hashes --no-emit-package attnbook --no-annotate \
		--quiet --upgrade --custom-compile-command "make lock" $(TORCH) --output-file $(LOCK)

clean:
	rm -rf .venv book/node_modules book/api _build .pytest_cache .ruff_cache .mypy_cache .hypothesis
