#!/usr/bin/env bash
# Builds the packages of a release for this platform and tests each in an empty environment:
#
#   packaging/release.sh [OUT_FOLDER]    (default: target/packages)
#
# OUT_FOLDER gets the Python wheel and source distribution, the npm packages, the Debian package (on
# Debian), the bill of materials, and SHA256SUMS. Nothing is published.
#
# Needs Rust, Python 3.10 or later, Node.js 20.9 or later. Installs maturin, zig and uv from PyPI
# in a temporary folder. On Linux, zig links the program so that it runs with glibc 2.17 or later.
# PROFILE names the build profile (default: dist).
set -euo pipefail
cd "$(dirname "$0")/.."

zig=0.15.2 uv=0.13.9
profile=${PROFILE:-dist}
root=$PWD
mkdir -p "${1:-target/packages}"
out=$(cd "${1:-target/packages}" && pwd)
if [ -n "$(ls -A "$out")" ]; then
  echo "$out is not empty: name another folder, or empty it" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false

step() {
  echo "-- $1 ($(date -u +%H:%M:%S))"
}

host=$(rustc -vV | sed -n 's/^host: //p')
case "$host" in
  *-linux-gnu) linking=(--zig --target "$host" --compatibility manylinux2014) ;;
  *) linking=() ;;
esac
case "$host" in *-windows-*) bin=Scripts exe=.exe ;; *) bin=bin exe= ;; esac

step "tools"
python=$(command -v python3 || command -v python)
"$python" -m venv "$work/tools"
tools=$work/tools/$bin
maturin=$(sed -n 's/^  "\(maturin==.*\)",$/\1/p' clients/python/pyproject.toml)
"$tools/pip" install --quiet "$maturin" "uv==$uv" ${linking[0]:+"ziglang==$zig"}

step "the Python package"
(
  cd clients/python
  PATH=$tools:$PATH "$tools/maturin" build --profile "$profile" --locked --out "$out" ${linking[0]:+"${linking[@]}"}
  "$tools/maturin" sdist --out "$out"
)
wheel=$(echo "$out"/*.whl)

step "the bill of materials"
"$tools/python" packaging/sbom.py make >"$out/treering-$host.cdx.json"

# All packages have the same program.
"$tools/python" -m zipfile -e "$wheel" "$work/wheel"
program=$(echo "$work"/wheel/*.data/scripts/treering$exe)
chmod 755 "$program"

step "the npm packages"
cp -R clients/typescript "$work/typescript"
(
  cd "$work/typescript"
  export TREERING_PROTO=$root/proto
  npm install --silent --ignore-scripts
  npm run --silent generate
  npm pack --silent --pack-destination "$out"
  node scripts/platform.mjs "$program" "$out" "$out/treering-$host.cdx.json"
)

if command -v dpkg-deb >/dev/null; then
  step "the Debian package"
  bash packaging/deb.sh "$program" "$out"
  # The program has no symbols that this file could have.
  rm "$out/treering.debug"
fi

# Runs the demo of a package, without this shell's variables and programs.
demo() { # COMMAND...
  rm -rf "$work/empty"
  mkdir "$work/empty"
  (
    cd "$work/empty"
    env -i HOME="$work/empty" PATH="$(dirname "$(command -v node)"):/usr/bin:/bin" \
      ${SYSTEMROOT:+SYSTEMROOT="$SYSTEMROOT"} \
      "$@" demo --exit --data store --listen 127.0.0.1:0 >said 2>&1
  ) || { cat "$work/empty/said" >&2; echo "release: the demo of this package failed" >&2; exit 1; }
  grep -m1 '^Serving ' "$work/empty/said"
}

step "the demo of the wheel"
demo "$tools/uvx" --from "$wheel" treering
step "the demo of the npm packages"
npx=$(command -v npx)
demo "$npx" --yes $(printf -- '--package %s ' "$out"/*.tgz) treering
if ls "$out"/*.deb >/dev/null 2>&1; then
  step "the demo of the Debian package"
  dpkg-deb -x "$out"/*.deb "$work/root"
  demo "$work/root/usr/bin/treering"
fi

step "checksums"
(cd "$out" && { sha256sum -- * 2>/dev/null || shasum -a 256 -- *; } >"$work/sums" && mv "$work/sums" SHA256SUMS && cat SHA256SUMS)
