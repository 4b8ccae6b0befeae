#!/usr/bin/env bash
# Checks the Python client: types, style, adapters of frameworks with their own suites, generated
# code. Tests it against real servers on the newest installed Python from 3.10 to 3.13; with
# TREERING_TEST_ALL, on every Python and with the oldest packages. Tests the source in src:
# .ci/wheel.sh tests the built package.
#
# Usage: .ci/python.sh [BINARY]    (default: target/debug/treering)
# TREERING_PYTHONS names the interpreters; default: all that are found.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
client=$PWD/clients/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Leaves the work tree unchanged.
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 TREERING_BINARY=$binary
export TREERING_TEST_DATA="${TREERING_TEST_DATA:-$(cd .. && pwd)/shared/data}"

. .ci/pythons.sh

testing=(pytest==9.2.0 typing-extensions zstandard==0.25.0)

step "types and style"
tools=$work/tools
venv "${pythons[-1]}" "$tools"
cd "$client"
needed "$tools" dev adapters >"$work/tools.txt"
"$tools/bin/pip" install --quiet -r "$work/tools.txt" 2>"$work/pip.log" || { cat "$work/pip.log" >&2; fail "pip"; }
"$tools/bin/ruff" check --no-cache .
"$tools/bin/ruff" format --no-cache --check .
PYTHONPATH=src "$tools/bin/mypy" --cache-dir "$work/mypy"
"$tools/bin/python" scripts/make_sync.py --check

step "adapters of frameworks, on $("$tools/bin/python" --version)"
# The frameworks' HTTP clients close their sockets only at exit.
PYTHONPATH=src timeout 1500 "$tools/bin/python" -m pytest -p no:cacheprovider \
  -p no:unraisableexception -W ignore::ResourceWarning tests/adapters

step "generated stubs"
oldest=
for python in "${pythons[@]}"; do
  "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))' && oldest=$python
done
if [ -n "$oldest" ]; then
  venv "$oldest" "$work/stubs"
  "$work/stubs/bin/pip" install --quiet "grpcio-tools==1.51.3" "mypy-protobuf==3.4.0" "setuptools<80"
  "$work/stubs/bin/python" scripts/make_stubs.py --check
else
  echo "not checked: their compiler needs Python 3.10 or 3.11, and neither is here"
fi

export PYTHONPATH=$client/src
tested=("${pythons[-1]}")
# Slow tests run only on the newest Python.
quick=(-m "not slow")
if [ -n "${TREERING_TEST_ALL:-}" ]; then tested=("${pythons[@]}"); fi
for python in "${tested[@]}"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  step "tests on Python $version"
  venv "$python" "$work/$version"
  "$work/$version/bin/pip" install --quiet $(needed "$tools" semantic) "${testing[@]}"
  which=("${quick[@]}")
  [ "$python" != "${pythons[-1]}" ] || which=()
  timeout 1000 "$work/$version/bin/python" -m pytest -p no:cacheprovider "${which[@]}"
done

if [ -n "$oldest" ] && [ -n "${TREERING_TEST_ALL:-}" ]; then
  step "tests with the oldest grpcio and protobuf, on $("$oldest" --version)"
  venv "$oldest" "$work/oldest"
  "$work/oldest/bin/pip" install --quiet "${testing[@]}" \
    "grpcio==1.51.3" "protobuf==4.21.6" "googleapis-common-protos==1.57.0"
  timeout 1000 "$work/oldest/bin/python" -m pytest -p no:cacheprovider "${quick[@]}"
fi
echo "python: all passed"
