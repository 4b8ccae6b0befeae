#!/usr/bin/env bash
# The Python client: types, style, adapters of frameworks with their own suites, generated
# code, tests against real servers on every Python from 3.10 to 3.13 that is here, and the
# wheel in an empty environment.
#
# Usage: .ci/python.sh [BINARY]    (default: target/debug/treering)
# TREERING_PYTHONS names the interpreters; default: all that are found.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
client=$PWD/clients/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Nothing is left in the work tree.
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 TREERING_BINARY=$binary
export TREERING_TEST_DATA="${TREERING_TEST_DATA:-$(cd .. && pwd)/shared/data}"

fail() {
  echo "python: $1" >&2
  exit 1
}

# The interpreters, one a version, in the order of their age.
found() {
  local version candidate
  for version in 3.10 3.11 3.12 3.13; do
    for candidate in "python$version" python3 "$HOME"/.pyenv/versions/"$version".*/bin/python; do
      if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
        echo "$candidate"
        break
      fi
    done
  done
}

venv() { # PYTHON FOLDER
  "$1" -m venv "$2" >"$work/venv.log" 2>&1 && return
  # On Debian, Python's own `venv` is a package apart.
  apt-get update -qq && apt-get install -y -qq python3-venv
  "$1" -m venv --clear "$2" || { cat "$work/venv.log" >&2; fail "no Python venv"; }
}

mapfile -t pythons < <(if [ -n "${TREERING_PYTHONS:-}" ]; then tr ' ' '\n' <<<"$TREERING_PYTHONS"; else found; fi)
[ "${#pythons[@]}" -gt 0 ] || fail "no Python from 3.10 to 3.13"

step() {
  echo "-- $1 ($(date -u +%H:%M:%S))"
}

step "types and style"
tools=$work/tools
venv "${pythons[-1]}" "$tools"
"$tools/bin/pip" install --quiet "$client[dev,adapters]" 2>"$work/pip.log" || { cat "$work/pip.log" >&2; fail "pip"; }
"$tools/bin/pip" uninstall --quiet --yes treering
cd "$client"
"$tools/bin/ruff" check --no-cache .
"$tools/bin/ruff" format --no-cache --check .
PYTHONPATH=src "$tools/bin/mypy" --cache-dir "$work/mypy"
"$tools/bin/python" scripts/make_sync.py --check

step "adapters of frameworks, on $("$tools/bin/python" --version)"
# Their HTTP clients leave sockets to the end of the program.
PYTHONPATH=src timeout 900 "$tools/bin/python" -m pytest -p no:cacheprovider \
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

step "the wheel"
# In a copy, so that nothing is left in the work tree.
cp -r "$client" "$work/build"
"$tools/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/dist" "$work/build"
wheel=$(echo "$work"/dist/*.whl)
echo "$(basename "$wheel"), $(stat -c %s "$wheel") bytes"

for python in "${pythons[@]}"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  step "tests on Python $version"
  venv "$python" "$work/$version"
  "$work/$version/bin/pip" install --quiet "$wheel" pytest==9.2.0 typing-extensions zstandard==0.25.0
  # What takes seconds runs on the newest, and below with the oldest packages.
  which=("-m" "not slow")
  [ "$python" != "${pythons[-1]}" ] || which=()
  timeout 600 "$work/$version/bin/python" -m pytest -p no:cacheprovider "${which[@]}"
done

if [ -n "$oldest" ]; then
  step "tests with the oldest grpcio and protobuf, on $("$oldest" --version)"
  venv "$oldest" "$work/oldest"
  "$work/oldest/bin/pip" install --quiet "$wheel" pytest==9.2.0 typing-extensions zstandard==0.25.0 \
    "grpcio==1.51.3" "protobuf==4.21.6" "googleapis-common-protos==1.57.0"
  timeout 600 "$work/oldest/bin/python" -m pytest -p no:cacheprovider
fi

step "the first page in an empty environment"
sed -n '/^```python$/,/^```$/p' README.md | sed '/^```$/q' | sed '/^```/d' >"$work/first.py"
mkdir "$work/empty"
cd "$work/empty"
began=$SECONDS
venv "${pythons[-1]}" "$work/user"
"$work/user/bin/pip" install --quiet "$wheel"
env -i HOME="$work/empty" PATH=/usr/bin:/bin "$work/user/bin/python" "$work/first.py" | tee "$work/said"
took=$((SECONDS - began))
grep -q "^grep 1 src/config.py:12: PORT = 7171$" "$work/said" || fail "the first page found nothing"
env -i "$work/user/bin/treering" ls --data store
echo "environment, installation and the page: $took s"
echo "python: all passed"
