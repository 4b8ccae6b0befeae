#!/usr/bin/env bash
# Attacks a cluster: three nodes of the built program over three PostgreSQL servers with Patroni and
# etcd, each in a network namespace of its own. Nodes and servers are killed, stopped, cut off,
# restarted and slowed down while clients append and read (cluster_ledger.py). After each fault,
# every acknowledged event must be there once, and reads must be linearizable (cluster_history.py).
#
# Usage: .ci/cluster_chaos.sh BINARY TRAJECTORIES [--long] [--only FAULT[,FAULT]] [--keep]
# Needs root on Linux, and Debian's packages (which it installs). --keep leaves the logs.
set -euo pipefail
cd "$(dirname "$0")/.."

SHORT=(kill_node lost_primary stop_owner cut_database cut_nodes lost_answer)
LONG=(kill_node kill_primary lost_primary lost_standby kill_both stop_owner cut_nodes cut_database one_way
  restart_database lost_answer full_disk slow_disk clock_jump storm lost_host stop_primary)

arguments() {
  binary=$(realpath "$1") data=$2/trajectories faults=("${SHORT[@]}") keep=
  shift 2
  while [ $# -gt 0 ]; do
    case $1 in
      --long) faults=("${LONG[@]}") ;;
      --only) IFS=, read -ra faults <<<"$2"; shift ;;
      --keep) keep=yes ;;
      *) echo "cluster chaos: unknown option $1" >&2; exit 2 ;;
    esac
    shift
  done
  local fault
  for fault in "${faults[@]}"; do
    [[ " ${LONG[*]} " == *" $fault "* ]] || { echo "no fault $fault: ${LONG[*]}" >&2; exit 2; }
  done
}

step() {
  echo "-- $1 ($(date -u +%H:%M:%S))"
}

# ---- outside: installs programs, and starts this script again in namespaces of its own ----

outside() {
  [ "$(id -u)" = 0 ] || { echo "cluster chaos: needs root for network namespaces" >&2; exit 1; }
  work=$(mktemp -d /tmp/treering-chaos-XXXXXX)
  chmod 711 "$work"
  export work
  trap clean_up EXIT
  step "programs"
  packages
  # Debian's Python: the user postgres must be able to run it.
  /usr/bin/python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check "patroni[etcd3]==4.1.5" \
    "psycopg[binary]==3.3.9" "grpcio>=1.51.3" "protobuf>=4.21.6" "googleapis-common-protos>=1.57" \
    zstandard==0.25.0 >"$work/pip.log" 2>&1 || { cat "$work/pip.log" >&2; exit 1; }
  # All processes, mounts and interfaces end with the first process of the namespaces.
  INSIDE=yes unshare --net --mount --pid --fork --mount-proc --kill-child \
    bash .ci/cluster_chaos.sh "$@" &
  inside=$!
  wait "$inside"
  [ -z "$keep" ] || echo "cluster chaos: logs are in $work"
}

clean_up() {
  if [ -n "${inside:-}" ]; then
    kill -9 "$inside" 2>/dev/null || true
    wait "$inside" 2>/dev/null || true
  fi
  [ -n "$keep" ] || rm -rf "$work"
}

packages() {
  local needed=(etcd-server postgresql iproute2 iptables faketime strace curl python3-venv)
  dpkg-query -W "${needed[@]}" >"$work/packages.txt" 2>&1 && return
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${needed[@]}" \
    >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; exit 1; }
}

# ---- inside: the cluster ----

declare -A ip=([a]=10.77.0.11 [b]=10.77.0.12 [c]=10.77.0.13
  [db1]=10.77.0.21 [db2]=10.77.0.22 [db3]=10.77.0.23 [etcd]=10.77.0.31)
databases=(db1 db2 db3)
declare -A node
SHARDS=12
CONVERSATIONS=12

fail() {
  echo "cluster chaos: $1" >&2
  tail -n 4 "$work"/*.log | cut -c 1-400 >&2 || true
  exit 1
}

at() { # HOST COMMAND...
  ip netns exec "$@"
}

network() {
  # The names of namespaces are files, which must not remain on the machine.
  mkdir -p /run/netns
  mount -t tmpfs none /run/netns
  ip link set lo up
  ip link add chaos type bridge
  ip address add 10.77.0.1/24 dev chaos
  ip link set chaos up
  local host
  for host in "${!ip[@]}"; do
    ip netns add "$host"
    ip link add "to-$host" type veth peer name eth0 netns "$host"
    ip link set "to-$host" master chaos up
    at "$host" ip address add "${ip[$host]}/24" dev eth0
    at "$host" ip link set lo up
    at "$host" ip link set eth0 up
  done
}

as_postgres() { # HOST COMMAND...
  cd /
  exec ip netns exec "$1" setpriv --reuid postgres --regid postgres --clear-groups \
    env HOME="$work" PATH="$programs:$PATH" "${@:2}"
}

start_etcd() {
  at etcd etcd --data-dir "$work/etcd" --listen-client-urls "http://${ip[etcd]}:2379" \
    --advertise-client-urls "http://${ip[etcd]}:2379" >"$work/etcd.log" 2>&1 &
  # Patroni refuses a ttl below 20 s. A shorter one makes this test shorter.
  cat >"$work/patroni.py" <<'PY'
from patroni import __main__, config
config.Config._validate_and_adjust_timeouts = lambda self, settings: None
if __name__ == "__main__":
    __main__.main()
PY
}

patroni_settings() { # DATABASE
  cat <<YAML
scope: chaos
name: $1
restapi: {listen: "${ip[$1]}:8008", connect_address: "${ip[$1]}:8008"}
etcd3: {host: "${ip[etcd]}:2379"}
bootstrap:
  dcs:
    ttl: 8
    loop_wait: 1
    retry_timeout: 3
    primary_start_timeout: 0
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters: {max_connections: 200, shared_buffers: 64MB, wal_log_hints: "on", max_wal_size: 128MB,
        min_wal_size: 32MB, max_slot_wal_keep_size: 256MB, wal_keep_size: 64MB}
      pg_hba: ["local all all trust", "host all all 10.77.0.0/24 trust", "host replication all 10.77.0.0/24 trust"]
  initdb: [{encoding: UTF8}, {locale: C}, data-checksums]
postgresql:
  listen: "${ip[$1]}:5432"
  connect_address: "${ip[$1]}:5432"
  data_dir: $work/$1/data
  bin_dir: $programs
  pgpass: $work/$1/pgpass
  basebackup: [{checkpoint: fast}]
  remove_data_directory_on_diverged_timelines: true
  remove_data_directory_on_rewind_failure: true
  parameters: {unix_socket_directories: $work/$1}
  authentication: {superuser: {username: postgres}, replication: {username: replicator}}
YAML
}

start_database() { # DATABASE
  as_postgres "$1" "$work/venv/bin/python" "$work/patroni.py" "$work/$1.yml" >>"$work/$1.log" 2>&1 &
  # Bash would report that it was killed.
  disown
}

start_databases() {
  local name
  for name in "${databases[@]}"; do
    mkdir -p "$work/$name"
    mount -t tmpfs -o "size=600m,mode=700,uid=$(id -u postgres),gid=$(id -g postgres)" none "$work/$name"
    patroni_settings "$name" >"$work/$name.yml"
    start_database "$name"
  done
  replicated
}

# Runs SQL on the primary.
sql() { # SQL
  sql_on "${ip[db1]},${ip[db2]},${ip[db3]}" "$1" target_session_attrs=read-write
}

sql_on() { # HOSTS SQL [OPTION]
  "$programs/psql" "host=$1 user=postgres dbname=${database:-postgres} connect_timeout=2 ${3:-}" \
    -X -A -t -q -v ON_ERROR_STOP=1 -c "$2" 2>>"$work/psql.log"
}

# Waits until a condition holds.
until_true() { # SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1))
  until "${@:3}"; do
    [ $SECONDS -lt $end ] || fail "not within $1 s: $2"
    sleep 0.3
  done
}

has_standbys() {
  [ "$(sql "select count(*), count(*) filter (where sync_state = 'sync') from pg_stat_replication
    where state = 'streaming'")" = "2|1" ]
}

# Waits until the primary has both standbys, one of them synchronous.
replicated() {
  until_true 120 "the primary has two standbys" has_standbys
}

# Prints the name of the primary.
primary() {
  local address name
  address=$(sql "select host(inet_server_addr())") || fail "there is no primary"
  for name in "${databases[@]}"; do
    [ "${ip[$name]}" != "$address" ] || echo "$name"
  done
}

kill_machine() { # HOST
  signal_machine "$1" -9
}

signal_machine() { # HOST SIGNAL
  # Some processes end by themselves after others.
  ip netns pids "$1" | xargs -r kill "$2" 2>>"$work/ends.txt" || true
}

start_node() { # NAME [VARIABLE=VALUE...]
  # Not by `at`: the process must be the node itself, not a shell.
  ip netns exec "$1" env "${@:2}" "$binary" serve --node "$1" --advertise "${ip[$1]}:7171" \
    --listen "${ip[$1]}:7171" --insecure --data "$work/node-$1" --memory 96MiB \
    >>"$work/node-$1.log" 2>&1 &
  node[$1]=$!
}

end_node() { # NAME SIGNAL
  kill "$2" "${node[$1]}" 2>>"$work/ends.txt" || true
  wait "${node[$1]}" 2>>"$work/ends.txt" || true
}

share_shards() { # COUNT
  "$binary" --json cluster status >"$work/status.json" 2>>"$work/status.log" || return
  "$work/venv/bin/python" - "$1" "$work/status.json" <<'PY'
import json, sys
status = json.load(open(sys.argv[2]))
owners = [node for node in status["nodes"] if node["shards"]]
sys.exit(bool(status["unowned"]) or len(owners) != int(sys.argv[1]))
PY
}

# Starts the nodes that ended: without a primary they do not start. A service manager does this too.
revive() {
  local name
  for name in a b c; do
    kill -0 "${node[$name]}" 2>>"$work/ends.txt" || start_node "$name"
  done
}

has_revived() {
  revive
  share_shards 3
}

# Waits until this number of nodes own all shards.
settled() { # COUNT
  until_true 60 "$1 nodes share the shards" share_shards "$1"
}

start_nodes() {
  local url="${ip[db1]},${ip[db2]},${ip[db3]}/treering?sslmode=disable"
  sql "create database treering"
  "$binary" cluster init "postgres://postgres@$url" --shards $SHARDS --role node
  export TREERING_CLUSTER=postgres://node@$url
  database=treering
  local name
  for name in a b c; do start_node "$name"; done
  settled 3
}

start_ledger() {
  coproc ledger {
    PYTHONPATH=clients/python/src:.ci exec "$work/venv/bin/python" .ci/cluster_ledger.py \
      $CONVERSATIONS "$data/tau-bench.jsonl.zst,$data/swe-agent.jsonl.zst,$data/pi-mono.jsonl.zst" \
      "a=${ip[a]}:7171" "b=${ip[b]}:7171" "c=${ip[c]}:7171" 2>"$work/ledger.log"
  }
  answer
}

answer() {
  local line
  while IFS= read -r line <&"${ledger[0]}"; do
    case $line in
      ok) return ;;
      failed*) fail "$line" ;;
      *) echo "$line" ;;
    esac
  done
  fail "the ledger ended"
}

tell() { # COMMAND...
  echo "$*" >&"${ledger[1]}"
  answer
}

# Drops packets from one host to another.
cut_one_way() { # FROM TO...
  local to
  for to in "${@:2}"; do
    [ "$to" != "$1" ] || continue
    at "$1" iptables -A OUTPUT -d "${ip[$to]}" -j DROP
  done
}

# Drops packets between a host and others.
cut_off() { # HOST OTHER...
  local other
  cut_one_way "$@"
  for other in "${@:2}"; do
    [ "$other" != "$1" ] || continue
    at "$1" iptables -A INPUT -s "${ip[$other]}" -j DROP
  done
}

heal() { # HOST
  at "$1" iptables -F
}

# Drops all packets of a host.
isolate() { # HOST
  at "$1" iptables -P INPUT DROP
  at "$1" iptables -P OUTPUT DROP
}

rejoin() { # HOST
  at "$1" iptables -P INPUT ACCEPT
  at "$1" iptables -P OUTPUT ACCEPT
}

# ---- faults ----

kill_node() {
  step "a node is killed"
  tell mark
  end_node a -9
  tell probe b c
  start_node a
  settled 3
  tell report
}

kill_primary() {
  local primary
  primary=$(primary)
  step "the primary's processes are killed: $primary"
  tell mark
  kill -9 "$(head -1 "$work/$primary/data/postmaster.pid")"
  tell report
  replicated
}

lost_primary() {
  local primary
  primary=$(primary)
  step "the primary's machine dies: $primary"
  tell mark
  kill_machine "$primary"
  tell report
  start_database "$primary"
  replicated
}

# Nothing tells the primary that its standby is gone.
lost_standby() {
  local standby
  standby=$(sql "select application_name from pg_stat_replication where sync_state = 'sync'")
  step "nothing reaches the synchronous standby any more: $standby"
  tell mark
  isolate "$standby"
  tell report
  rejoin "$standby"
  replicated
}

kill_both() {
  local primary
  primary=$(primary)
  step "a node and the primary's machine die: b and $primary"
  tell mark
  end_node b -9
  kill_machine "$primary"
  tell probe a c
  start_node b
  start_database "$primary"
  settled 3
  tell report
  replicated
}

stop_owner() {
  step "an owner is stopped beyond its lease, and goes on"
  tell mark
  kill -STOP "${node[a]}"
  settled 2
  tell probe b c
  sleep 2
  kill -CONT "${node[a]}"
  settled 3
  tell report
}

cut_nodes() {
  step "two nodes cannot reach each other"
  tell mark
  cut_off a b
  sleep 12
  tell probe c
  heal a
  tell report
}

cut_database() {
  step "a node cannot reach the database"
  tell mark
  cut_off a "${databases[@]}"
  settled 2
  tell probe b c
  heal a
  settled 3
  tell report
}

one_way() {
  local primary
  primary=$(primary)
  step "packets from a node to the primary are lost"
  tell mark
  cut_one_way a "$primary"
  settled 2
  tell probe b c
  heal a
  settled 3
  tell report
  step "packets from the primary to a node are lost"
  tell mark
  cut_one_way "$primary" b
  settled 2
  tell probe a c
  heal "$primary"
  settled 3
  tell report
  step "packets from a node to another are lost"
  tell mark
  cut_one_way a b
  sleep 12
  tell probe c
  heal a
  tell report
}

restart_database() {
  local primary
  primary=$(primary)
  step "PostgreSQL is restarted: $primary"
  tell mark
  curl -sS -X POST "http://${ip[$primary]}:8008/restart" && echo
  tell report
  replicated
}

# The last frame of each shard.
LAST_FRAMES="select frame_id from treering_frame join treering_shard using (shard)
  where first_offset + count > head"

# The standbys are cut off while appends wait for them. Their backends are cancelled, so that the
# primary shows what no standby has. Then the primary dies.
lost_answer() {
  local primary others waiting frames lost
  primary=$(primary)
  read -ra others <<<"${databases[@]/$primary/}"
  step "appends wait for a standby and are cancelled, then the primary dies: $primary"
  tell mark
  cut_off "$primary" "${others[@]}"
  sleep 2
  waiting=$(sql_on "${ip[$primary]}" "select count(pg_cancel_backend(pid)) from pg_stat_activity
    where wait_event = 'SyncRep'")
  sleep 1
  frames=$(sql_on "${ip[$primary]}" "select string_agg(quote_literal(frame_id), '),(')
    from ($LAST_FRAMES) as frames")
  kill_machine "$primary"
  until_true 60 "there is another primary" sql "select 1" >"$work/primary.txt"
  lost=$(sql "select count(*) from (values ($frames)) as old (id)
    where id::uuid not in (select frame_id from treering_frame)")
  echo "   $waiting backends were cancelled; $lost frames of the old primary are not on the new one"
  [ "$lost" -gt 0 ] || fail "nothing was lost by the fail-over"
  heal "$primary"
  start_database "$primary"
  tell report
  replicated
}

# The primary is the first host of the URL, and its machine does not answer: nobody refuses
# connections to it.
lost_host() {
  switch_to db1
  step "nothing reaches the primary any more, the first host of the URL: db1"
  tell mark
  isolate db1
  tell probe a b c
  step "a node is restarted meanwhile"
  end_node c -9
  start_node c
  settled 3
  tell report
  rejoin db1
  replicated
}

# The kernel of a stopped machine's processes still accepts connections.
stop_primary() {
  switch_to db1
  step "the processes of the primary stop, and go on after a fail-over: db1"
  tell mark
  signal_machine db1 -STOP
  tell probe a b c
  signal_machine db1 -CONT
  tell report
  replicated
}

switched_to() { # DATABASE
  local primary
  primary=$(primary)
  [ "$primary" != "$1" ] || return 0
  curl -sS -X POST "http://${ip[$primary]}:8008/switchover" \
    -d "{\"leader\": \"$primary\", \"candidate\": \"$1\"}" >>"$work/switchover.log" 2>&1
  sleep 2
  return 1
}

# Makes a server the primary. Patroni refuses this until the server is the synchronous standby.
switch_to() { # DATABASE
  until_true 60 "$1 is the primary" switched_to "$1"
  replicated
}

full_disk() {
  local primary free
  primary=$(primary)
  step "the disk of the primary is full: $primary"
  tell mark
  free=$(df --output=avail -k "$work/$primary" | tail -1)
  dd if=/dev/zero of="$work/$primary/filler" bs=1k count="$free" 2>/dev/null || true
  sleep 12
  rm "$work/$primary/filler"
  tell report
  replicated
}

slow_disk() {
  local primary
  primary=$(primary)
  step "each flush of the primary's disk takes 300 ms: $primary"
  tell mark
  local pids=() pid
  for pid in $(ip netns pids "$primary"); do pids+=(-p "$pid"); done
  strace -f -q -o "$work/strace.txt" -e trace=fdatasync,fsync \
    -e inject=fdatasync,fsync:delay_enter=300000 "${pids[@]}" 2>"$work/strace.log" &
  local strace=$!
  sleep 15
  kill "$strace"
  wait "$strace" 2>/dev/null || true
  echo "   $(grep -c DELAYED "$work/strace.txt" || true) flushes were delayed"
  tell report
  replicated
}

clock_jump() {
  local library offset
  library=$(ls /usr/lib/*/faketime/libfaketime.so.1)
  step "the clock of a node jumps by an hour, forward and back"
  echo "+0" >"$work/clock"
  end_node b -TERM
  start_node b LD_PRELOAD="$library" FAKETIME_TIMESTAMP_FILE="$work/clock" FAKETIME_NO_CACHE=1 \
    FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1
  settled 3
  for offset in +3600 -3600 +0; do
    tell mark
    echo "$offset" >"$work/clock"
    sleep 12
    settled 3
    tell report
  done
}

# Two faults at a time, chosen by chance, again and again. STORM_SECONDS and STORM_SEED set how long
# and which.
storm() {
  local seconds=${STORM_SECONDS:-180} seed=${STORM_SEED:-$(date +%s)} one other end
  RANDOM=$((seed % 32768)) end=$((SECONDS + seconds))
  step "faults chosen by chance, for $seconds s (STORM_SEED=$seed)"
  tell mark
  while [ $SECONDS -lt $end ]; do
    choose one
    choose other
    while [ "${other#* }" = "${one#* }" ]; do choose other; done
    echo "   $one, $other ($(date -u +%H:%M:%S))"
    # shellcheck disable=SC2086 # a verb and a host
    { begin $one; sleep $((RANDOM % 6)); begin $other; sleep $((RANDOM % 14)); end $one; end $other; }
    sleep $((RANDOM % 6))
    revive
  done
  until_true 90 "three nodes share the shards" has_revived
  replicated
  tell report
}

choose() { # VARIABLE
  local verbs=(kill kill stop cut isolate) hosts=(a b c db1 db2 db3) verb host
  verb=${verbs[RANDOM % ${#verbs[@]}]} host=${hosts[RANDOM % ${#hosts[@]}]}
  case $((RANDOM % 10)) in
    0) verb=cancel host=backends ;;
    1) verb=terminate host=backends ;;
    2) verb=drain host=${hosts[RANDOM % 3]} ;;
  esac
  printf -v "$1" '%s %s' "$verb" "$host"
}

begin() { # VERB HOST
  case $1:$2 in
    kill:db*) kill_machine "$2" ;;
    kill:*) end_node "$2" -9 ;;
    drain:*) kill -TERM "${node[$2]}" ;;
    stop:*) signal_machine "$2" -STOP ;;
    isolate:*) isolate "$2" ;;
    # A node from the database, a server from the others.
    cut:*) cut_off "$2" "${databases[@]}" ;;
    cancel:*) on_backends pg_cancel_backend ;;
    terminate:*) on_backends pg_terminate_backend ;;
  esac
}

end() { # VERB HOST
  case $1:$2 in
    kill:db*) start_database "$2" ;;
    kill:*) start_node "$2" ;;
    drain:*) end_node "$2" -9; start_node "$2" ;;
    stop:*) signal_machine "$2" -CONT ;;
    isolate:*) rejoin "$2" ;;
    cut:*) heal "$2" ;;
  esac
}

on_backends() { # FUNCTION
  sql "select count($1(pid)) from pg_stat_activity where usename = 'node'" >>"$work/backends.txt" ||
    echo "   there is no primary"
}

# ---- the end ----

same_exports() {
  local name
  for name in a b c; do
    "$binary" --server "http://${ip[$name]}:7171" export --format openai-chat | sort >"$work/export-$name" ||
      fail "node $name does not export"
    cmp "$work/export-a" "$work/export-$name" || fail "nodes a and $name export different contents"
  done
  echo "   $(wc -l <"$work/export-a") conversations, $(stat -c %s "$work/export-a") bytes"
}

inside() {
  # shellcheck disable=SC2012 # these are plain names
  programs=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | tail -1)")
  step "the ledger's checks find forged histories"
  "$work/venv/bin/python" .ci/cluster_history.py
  step "three PostgreSQL servers with Patroni, three nodes, a ledger"
  network
  start_etcd
  start_databases
  start_nodes
  start_ledger
  local fault
  for fault in "${faults[@]}"; do "$fault"; done
  step "every node shows everything, and the same"
  tell mark
  tell final
  same_exports
  echo "cluster chaos: passed (${#faults[@]} faults in $SECONDS s)"
}

export PYTHONDONTWRITEBYTECODE=1
arguments "$@"
if [ -n "${INSIDE:-}" ]; then inside; else outside "$@"; fi
