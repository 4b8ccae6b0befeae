#!/usr/bin/env bash
# Three nodes of the built program over a PostgreSQL server that this script starts: any node takes
# any call, each shard has a follower, a node is killed while conversations are imported, one is
# restarted, one is drained while events are appended, and all events move to object storage. Every
# node must then show the same as a store of one machine. That store is then moved into a second
# cluster, by an import that is killed and continued, and moved back.
#
# Usage: .ci/cluster.sh BINARY TRAJECTORIES    (TREERING_TEST_ALL=1: with a bucket, not a folder)
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "$1")
data=$2/trajectories
work=$(mktemp -d)
chmod 711 "$work"
declare -A node

fail() {
  echo "cluster: $1" >&2
  tail -n 20 "$work"/*.log >&2 || true
  exit 1
}

clean_up() {
  kill "${node[@]}" ${s3:+"$s3"} 2>/dev/null || true
  wait
  stop_postgres immediate || true
  rm -rf "$work"
}
trap clean_up EXIT

. .ci/postgres_server.sh
start_postgres
database createdb -h 127.0.0.1 -p "$port" -U owner treering
# Every event moves to object storage as soon as it is durable.
objects=(--objects "$work/objects" --hot 0)
if [ -n "${TREERING_TEST_ALL:-}" ]; then
  . .ci/s3_server.sh
  start_s3
  create_bucket objects
  objects=(--objects s3://objects/treering --hot 0)
fi
"$binary" cluster init "postgres://owner@127.0.0.1:$port/treering" --shards 12 --role node "${objects[@]}"
export TREERING_CLUSTER=postgres://node@127.0.0.1:$port/treering

declare -A address metrics
for name in a b c; do
  address[$name]=127.0.0.1:$(free_port)
  metrics[$name]=127.0.0.1:$(free_port)
done

start() { # NAME
  "$binary" serve --node "$1" --advertise "${address[$1]}" --listen "${address[$1]}" \
    --metrics "${metrics[$1]}" --data "$work/${folders:-}$1" --memory 96MiB --accept-single-copy >>"$work/$1.log" 2>&1 &
  node[$1]=$!
}

on() { # NAME COMMAND...
  "$binary" --server "http://${address[$1]}" "${@:2}"
}

# Waits until these nodes own all shards.
settled() { # COUNT
  for _ in $(seq 300); do
    "$binary" --json cluster status >"$work/status.json"
    if python3 - "$1" "$work/status.json" <<'PY'; then return; fi
import json, sys
status = json.load(open(sys.argv[2]))
owners = [node for node in status["nodes"] if node["shards"]]
sys.exit(status["unowned"] or len(owners) != int(sys.argv[1]))
PY
    sleep 0.2
  done
  fail "the nodes do not share the shards: $(cat "$work/status.json")"
}

# Prints an answer of a node's metrics listener, and its status code.
scraped() { # NAME PATH
  python3 - "http://${metrics[$1]}/$2" <<'PY'
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=10)
except urllib.error.HTTPError as error:
    answer = error
print(answer.read().decode(), answer.status)
PY
}

# What a store has, without ids and times.
everything() { # OPTION...
  "$binary" "$@" export --format openai-chat | sort
}

step() {
  echo "-- $1 ($(date -u +%H:%M:%S))"
}

step "three nodes share the shards, and import through one of them"
for name in a b c; do start "$name"; done
settled 3
on a import "$data/tau-bench.jsonl.zst"
"$binary" import --data "$work/one" "$data/tau-bench.jsonl.zst" >"$work/import.log" 2>&1
everything --data "$work/one" >"$work/wanted"
for name in b c; do
  everything --server "http://${address[$name]}" >"$work/shown"
  cmp "$work/wanted" "$work/shown" || fail "node $name shows other conversations"
  on "$name" search --count refund >"$work/found" || fail "node $name finds nothing"
done

step "every node serves pages and agents"
for name in a b c; do
  python3 - "http://${address[$name]}" <<'PY' || fail "node $name serves no pages or agents"
import json, sys, urllib.request

def fetch(path, **request):
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1] + path, **request), timeout=30)
    return answer.read().decode()

assert fetch("/").count('href="/c/') > 20, "the list of conversations"
assert "<mark>refund" in fetch("/search?q=refund").lower(), "a search"
call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "search", "arguments": {"query": "refund"}}}
headers = {"content-type": "application/json", "accept": "application/json, text/event-stream",
           "mcp-protocol-version": "2025-06-18"}
answer = fetch("/mcp", data=json.dumps(call).encode(), headers=headers)
assert "refund" in answer and '"isError":true' not in answer, answer
PY
done

step "each shard has a follower that is up to date"
for _ in $(seq 150); do
  "$binary" --json cluster status >"$work/status.json"
  followed=$(python3 -c '
import json, sys
nodes = json.load(open(sys.argv[1]))["nodes"]
print(sum(node["followed"] for node in nodes), sum(node["follower_lag"] for node in nodes))' \
    "$work/status.json")
  [ "$followed" != "12 0" ] || break
  sleep 0.2
done
[ "$followed" = "12 0" ] || fail "followed of 12 shards, and events behind: $followed"
for name in a b c; do scraped "$name" metrics; done >"$work/metrics.txt"
followers=$(grep -c '^treering_shard_follower_lag_events{shard="[0-9]*"} 0$' "$work/metrics.txt" || true)
[ "$followers" = 12 ] || fail "the metrics show $followers followers of 12 shards"

step "searches have the scores of one store"
python3 - tests/fixtures/search/known_items.jsonl >"$work/queries" <<'PY'
import json, sys
queries = [json.loads(line)["query"] for line in open(sys.argv[1])]
print("\n".join(queries[::10]))
PY
while read -r query; do
  "$binary" --data "$work/one" search --json --plain -n 5 "$query" >"$work/wanted" 2>"$work/search.txt"
  on b search --json --plain -n 5 "$query" >"$work/shown" 2>"$work/search.txt"
  python3 - "$work/wanted" "$work/shown" <<'PY' || fail "other scores than in one store: $query"
import json, sys
# Of equal texts, the first one recorded is the hit, and the two imports recorded in other orders.
def hits(path):
    found = [json.loads(line) for line in open(path)]
    return [hit["score"] for hit in found if "score" in hit]
one, several = hits(sys.argv[1]), hits(sys.argv[2])
if len(one) != len(several) or any(abs(a - b) > 0.01 for a, b in zip(one, several)):
    print(one, several, sep="\n", file=sys.stderr)
    sys.exit(1)
PY
done <"$work/queries"

step "a node is killed while another imports"
"$binary" import --data "$work/one" "$data/pydantic-ai-cassettes.jsonl.zst" "$data/pi-mono.jsonl.zst" \
  >>"$work/import.log" 2>&1
on b import "$data/pydantic-ai-cassettes.jsonl.zst" "$data/pi-mono.jsonl.zst" >"$work/during.txt" 2>&1 &
import=$!
sleep 0.5
kill -9 "${node[a]}"
# An append on its way to the dead node has an unknown outcome, which an importer reports.
wait "$import" || true
settled 2
on b import "$data/pydantic-ai-cassettes.jsonl.zst" "$data/pi-mono.jsonl.zst" | tail -1
everything --data "$work/one" >"$work/wanted"
for name in b c; do
  everything --server "http://${address[$name]}" >"$work/shown"
  cmp "$work/wanted" "$work/shown" || fail "node $name lost or doubled something"
done

step "the node comes back, and another is drained while events are appended"
start a
settled 3
conversations=$(on a ls --json --limit 6 | python3 -c '
import json, sys
for line in sys.stdin: print(json.loads(line)["conversation"])')
append() {
  local number
  for number in $(seq 10); do
    for conversation in $conversations; do
      on c append "$conversation" message user "number $number" >"$work/append.txt" 2>&1 ||
        { cat "$work/append.txt"; return 1; }
    done
  done
}
append >"$work/appends.log" &
appends=$!
sleep 1
kill "${node[b]}"
wait "${node[b]}" || fail "the drained node ended with an error"
wait "$appends" || fail "an append failed while a node was drained: $(cat "$work/appends.log")"
settled 2
for conversation in $conversations; do
  for name in a c; do
    shown=$(on "$name" log "$conversation" --full | grep -c 'number [0-9]*$' || true)
    [ "$shown" = 10 ] || fail "node $name shows $shown of 10 appended messages of $conversation"
  done
done

step "a node is drained by name, and the log is verified without a node"
"$binary" cluster drain a
"$binary" --json cluster status >"$work/status.json"
python3 - "$work/status.json" <<'PY' || fail "the drained node has shards: $(cat "$work/status.json")"
import json, sys
status = json.load(open(sys.argv[1]))
shards = {node["node"]: node["shards"] for node in status["nodes"]}
sys.exit(status["unowned"] or shards["a"] != 0)
PY
"$binary" cluster verify
"$binary" cluster status | grep -q 'in [1-9][0-9,]* segments at' || fail "nothing is in object storage"
kill "${node[a]}" "${node[c]}"
wait "${node[a]}" "${node[c]}" || fail "a node ended with an error"

step "a store is moved into a new cluster; the import is killed and continued"
database createdb -h 127.0.0.1 -p "$port" -U owner second
owner=postgres://owner@127.0.0.1:$port/second
"$binary" cluster init "$owner" --shards 12 --role node "${objects[@]}"
moved=(cluster import --data "$work/one" --cluster "$owner")
"$binary" "${moved[@]}" >"$work/import.log" 2>&1 &
import=$!
has_events() {
  [ "$(database psql -h 127.0.0.1 -p "$port" -U owner -XAtc \
    "select exists (select from treering_shard where head > 0)" second)" = t ]
}
until has_events; do
  kill -0 "$import" || fail "the import ended early: $(cat "$work/import.log")"
done
kill -9 "$import"
wait "$import" && fail "the import was not killed"
export TREERING_CLUSTER=postgres://node@127.0.0.1:$port/second
folders=second-
start a
wait "${node[a]}" && fail "a node started although an import is not finished"
grep -q "run .treering cluster import. again" "$work/a.log" || fail "the node does not say why it ended"
"$binary" "${moved[@]}"

step "a node that starts without a database waits for it, and shows the moved store"
stop_postgres fast
start a
start c
sleep 2
kill -0 "${node[a]}" "${node[c]}" || fail "a node ended because the database is away"
scraped a ready | grep -q '^ 503$' || fail "a node without a database is ready: $(scraped a ready)"
on a ls >"$work/ls.txt" 2>&1 && fail "a node without a database answers"
grep -q "has not joined its cluster" "$work/ls.txt" || fail "the error does not help: $(cat "$work/ls.txt")"
grep -q "this is tried again" "$work/c.log" || fail "the node does not say that it waits"
run_postgres
settled 2
# The table of owners names a node before it has opened the shard.
for _ in $(seq 150); do
  for name in a c; do scraped "$name" metrics; done >"$work/metrics.txt"
  owners=$(grep -c '^treering_shard_role{.*role="owner"' "$work/metrics.txt" || true)
  [ "$owners" != 12 ] || break
  sleep 0.2
done
[ "$owners" = 12 ] || fail "the metrics show $owners owners of 12 shards"
grep -q '^treering_shard_head_position{shard="3"} [1-9]' "$work/metrics.txt" ||
  fail "the metrics do not show the head of a shard"
everything --data "$work/one" >"$work/wanted"
everything --server "http://${address[c]}" >"$work/shown"
cmp "$work/wanted" "$work/shown" || fail "the cluster shows other conversations than the moved store"
hits() { # OPTION...
  "$binary" "$@" search --json -n 50 refund 2>"$work/search.txt" | python3 -c '
import json, sys
for line in sys.stdin:
    hit = json.loads(line)
    if "score" in hit: print(hit["conversation"], hit["revision"])' | sort
}
hits --data "$work/one" >"$work/wanted"
hits --server "http://${address[a]}" >"$work/shown"
cmp "$work/wanted" "$work/shown" || fail "the cluster finds other events than the moved store"

step "keys are those of all nodes, also of one that starts later, until they are revoked"
# Waits until a node takes a key, or refuses it with an exit code.
with_key() { # KEY CODE NAME...
  local name code
  for name in "${@:3}"; do
    for _ in $(seq 100); do
      code=0
      TREERING_TOKEN=$1 on "$name" ls >"$work/ls.txt" 2>&1 || code=$?
      [ "$code" != "$2" ] || break
      sleep 0.1
    done
    [ "$code" = "$2" ] || fail "node $name answers a key with $code in place of $2: $(cat "$work/ls.txt")"
  done
}
refused=4
ops=$("$binary" keys create ops --role 'admin:*' 2>"$work/keys.txt") || fail "$(cat "$work/keys.txt")"
agent=$("$binary" keys create agent --role reader 2>"$work/keys.txt") || fail "$(cat "$work/keys.txt")"
with_key "" "$refused" a c
with_key "$agent" 0 a c
start b
settled 3
with_key "$agent" 0 b
"$binary" keys revoke agent --data "$work/second-b" >"$work/keys.txt" 2>&1 && fail "a copy of the keys was changed"
grep -q -- "--cluster" "$work/keys.txt" || fail "the error does not help: $(cat "$work/keys.txt")"
"$binary" keys revoke agent
with_key "$agent" "$refused" a b c
with_key "$ops" 0 a b c
"$binary" keys ls | grep -q 'agent  revoked' || fail "the keys: $("$binary" keys ls)"
TREERING_TOKEN=$ops on b audit | grep -q 'agent' || fail "the audit does not have the key"
kill "${node[a]}" "${node[b]}" "${node[c]}"
wait "${node[a]}" "${node[b]}" "${node[c]}" || fail "a node ended with an error"
"$binary" cluster export --cluster "$owner" --data "$work/back"
everything --data "$work/one" >"$work/wanted"
everything --data "$work/back" >"$work/shown"
cmp "$work/wanted" "$work/shown" || fail "the store came back with other conversations"
"$binary" --data "$work/back" verify --deep >"$work/verify.txt" || fail "$(cat "$work/verify.txt")"
echo "cluster: passed"
