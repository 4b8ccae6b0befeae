#!/usr/bin/env bash
# Builds the packages of a release for this platform and tests each in an empty environment:
#
#   packaging/release.sh [--binary PROGRAM] [OUT_FOLDER]    (default: target/packages)
#
# OUT_FOLDER gets the Python wheel and source distribution, the npm packages, the Debian package
# (where dpkg-deb is), the bill of materials, the licences of the crates in the program, and
# SHA256SUMS. Nothing is published.
#
# On Linux, zig links the program so that it runs with glibc 2.17 or later; maturin fails if it
# needs a later one. With --binary (not on Windows), nothing is compiled: the packages have this
# program, and the wheel is tagged for the glibc that it needs. PROFILE names the build profile
# (default: dist).
#
# Needs Rust, a C compiler, Python 3.11 or later, Node.js 20.9 or later. Installs maturin, zig and
# uv from PyPI in a temporary folder.
set -euo pipefail

fail() {
  echo "release: $1" >&2
  exit 1
}

step() {
  echo "-- $1 ($(date -u +%H:%M:%S))"
}

built=
if [ "${1:-}" = --binary ]; then
  [ -x "${2:-}" ] || fail "--binary needs a program: ${2:-}"
  built=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
  shift 2
fi
[ $# -le 1 ] || fail "usage: packaging/release.sh [--binary PROGRAM] [OUT_FOLDER]"
cd "$(dirname "$0")/.."

zig=0.15.2 uv=0.13.9 wheel_tool=0.48.0
root=$PWD
out=${1:-target/packages}
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -z "$(ls -A "$out")" ] || fail "$out is not empty: name another folder, or empty it"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false

host=$(rustc -vV | sed -n 's/^host: //p')
bin=bin exe='' system=/usr/bin:/bin
case "$host" in *-windows-*) bin=Scripts exe=.exe system=/usr/bin:/bin:/c/Windows/System32 ;; esac

step "versions and tools"
python=$(command -v python3 || command -v python)
"$python" -m venv "$work/tools"
tools=$work/tools/$bin
version=$(cargo pkgid --package treering-cli | sed 's/.*[#@]//')
if ! grep -q "^version = \"$version\"\$" clients/python/pyproject.toml ||
  ! grep -q "^  \"version\": \"$version\",\$" clients/typescript/package.json; then
  fail "the clients do not have the version of the program, $version"
fi
maturin=$(sed -n 's/^  "\(maturin==.*\)",$/\1/p' clients/python/pyproject.toml)

options=(--profile "${PROFILE:-dist}" --locked)
linker=
case "$host" in
  *-linux-gnu)
    if [ -z "$built" ]; then
      options+=(--zig --target "$host" --compatibility manylinux2014)
      linker=ziglang==$zig
    fi
    ;;
esac
"$tools/python" -m pip install --quiet "$maturin" "uv==$uv" "wheel==$wheel_tool" ${linker:+"$linker"}

step "the Python package"
if [ -n "$built" ]; then
  # maturin asks cargo for the program, and gets this one.
  mkdir "$work/built"
  cp "$built" "$work/built/treering"
  strip "$work/built/treering"
  cat >"$work/cargo" <<'CARGO'
#!/usr/bin/env bash
[ "$1" = rustc ] || exec cargo "$@"
cat "$(dirname "$0")/cargo.json"
CARGO
  chmod +x "$work/cargo"
  # Each of its messages is one line.
  tr -d '\n' >"$work/cargo.json" <<JSON
{"reason": "compiler-artifact", "package_id": "$(cargo pkgid --package treering-cli)",
 "manifest_path": "$root/src/cli/Cargo.toml",
 "target": {"name": "treering", "kind": ["bin"], "crate_types": ["bin"],
  "src_path": "$root/src/cli/main.rs", "edition": "2024"},
 "profile": {"opt_level": "3", "debug_assertions": false, "overflow_checks": false, "test": false},
 "features": [], "filenames": ["$work/built/treering"], "executable": "$work/built/treering",
 "fresh": true}
JSON
  printf '\n{"reason": "build-finished", "success": true}\n' >>"$work/cargo.json"
  export CARGO=$work/cargo
fi
(
  cd clients/python
  PATH=$tools:$PATH "$tools/maturin" build "${options[@]}" --out "$work/wheel"
  unset CARGO
  "$tools/maturin" sdist --out "$out" >"$work/sdist.log" 2>&1 ||
    { cat "$work/sdist.log" >&2; fail "no source distribution"; }
)
unset CARGO
"$tools/wheel" unpack --dest "$work/unpacked" "$work"/wheel/*.whl
unpacked=$work/unpacked/treering-$version
# All packages have the same program.
program=$unpacked/treering-$version.data/scripts/treering$exe
[ "$("$program" --version | tr -d '\r')" = "treering $version" ] ||
  fail "the program is not of version $version"

step "the bill of materials and the licences"
bill=$out/treering-$version-$host.cdx.json
notices=$out/treering-$version-$host.THIRD-PARTY-NOTICES.txt
"$tools/python" packaging/sbom.py make >"$bill"
"$tools/python" packaging/sbom.py check "$bill"
"$tools/python" packaging/notices.py >"$notices"
cp "$notices" "$unpacked/treering-$version.dist-info/licenses/THIRD-PARTY-NOTICES.txt"
"$tools/wheel" pack --dest-dir "$out" "$unpacked"
wheel=$(echo "$out"/*.whl)

step "the npm packages"
cp -R clients/typescript "$work/typescript"
cd "$work/typescript"
node scripts/platform.mjs "$program" "$out" "$bill" "$notices"
platform=$(echo "$out"/*.tgz)
main=
# It is the same on all platforms, and its scripts do not run on Windows.
if [ -z "$exe" ]; then
  export TREERING_PROTO=$root/proto
  npm install --silent --ignore-scripts
  npm run --silent generate
  npm run --silent build
  # Only a release depends on the platform packages: elsewhere no registry has this version.
  for each in darwin-arm64 darwin-x64 linux-arm64 linux-x64 win32-arm64 win32-x64; do
    npm pkg set "optionalDependencies.@treering/$each=$version"
  done
  npm pack --silent --pack-destination "$out"
  main=$out/treering-$version.tgz
fi
cd "$root"

deb=
if command -v dpkg-deb >/dev/null; then
  step "the Debian package"
  deb=$(bash packaging/deb.sh "$program" "$out" | tail -1)
  echo "$deb"
  # The program has no symbols that this file could have.
  rm "$out/treering.debug"
fi

# How this machine reaches package registries.
network=()
while IFS= read -r each; do
  network+=("$each")
done < <(
  env | grep -iE '^((https?|all|no)_proxy|SSL_CERT_FILE|NODE_EXTRA_CA_CERTS)=' || true
  env | grep -iE '^(UV_[A-Z_]*INDEX[A-Z_]*|npm_config_(registry|cafile))=' || true
)

# Runs the demo of a package in an empty folder, without this shell's variables and caches.
demo() { # COMMAND...
  local empty=$work/empty
  rm -rf "$empty"
  mkdir "$empty"
  (
    cd "$empty"
    env -i HOME="$empty" PATH="$(dirname "$(command -v node)"):$system" \
      ${SYSTEMROOT:+SYSTEMROOT="$SYSTEMROOT" TEMP="$TEMP"} ${network[0]:+"${network[@]}"} \
      "$@" demo --exit --data store --listen 127.0.0.1:0 >said 2>&1
  ) || { cat "$empty/said" >&2; fail "the demo of this package failed"; }
  grep -q '^Comparing the branches' "$empty/said" || { cat "$empty/said" >&2; fail "no tour"; }
  grep '^Serving ' "$empty/said"
}

step "the demo of the wheel"
if [ "$host" = aarch64-pc-windows-msvc ]; then
  # grpcio has no wheel for this platform. The program does not need it.
  "$tools/uv" venv --quiet --python "$tools/python" "$work/venv"
  "$tools/uv" pip install --quiet --python "$work/venv/$bin/python" --no-deps "$wheel"
  demo "$work/venv/$bin/treering"
else
  demo "$tools/uvx" --python "$tools/python" --from "$wheel" treering
fi
npx=$(command -v npx)
step "the demo of the npm package for this platform"
# npx takes a tarball's path only with a dot or `file:` in front. Windows' npx has Windows' paths.
if [ -n "$exe" ]; then platform=$(cygpath -m "$platform"); fi
demo "$npx" --yes "file:$platform"
if [ -n "$main" ]; then
  step "the demo of both npm packages"
  demo "$npx" --yes --package "$platform" --package "$main" treering
fi
if [ -n "$deb" ]; then
  step "the demo of the Debian package"
  dpkg-deb -x "$deb" "$work/root"
  demo "$work/root/usr/bin/treering"
fi

step "checksums"
cd "$out"
{ sha256sum -- * 2>/dev/null || shasum -a 256 -- *; } >"$work/sums"
mv "$work/sums" SHA256SUMS
cat SHA256SUMS
