# The front door. Meson does the building; see CONTRIBUTING.md.
#
#   make         build build/shoal
#   make demo    build, paint pictures from the embedded model in little memory, verify the bits
#   make test    everything that CI runs; the last line is "N passed, N failed"
#   make dist    one tarball that runs on any x86-64 Linux with glibc
#   make fuzz    a minute of libFuzzer on every target (needs clang)
#   make install / make clean

MESON ?= meson
BUILD := build
PREFIX ?= /usr/local

.PHONY: all demo test dist fuzz install clean deps format
.DEFAULT_GOAL := all

# Installs missing Debian packages; does nothing and needs no rights when nothing is missing.
deps:
	@tools/install_deps.sh

$(BUILD)/build.ninja: | deps
	$(MESON) setup $(BUILD) -Dprefix=$(PREFIX)

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD) --quiet
	@ln -sf programs/shoal/shoal $(BUILD)/shoal

demo: all
	@tools/demo.sh $(BUILD)/shoal

test: deps
	@tools/run_tests.py

dist: all
	@tools/dist.sh

fuzz: deps
	@tools/fuzz.sh

install: all
	ninja -C $(BUILD) install

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf $(BUILD) build-* dist
