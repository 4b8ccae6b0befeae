# shellcheck shell=bash disable=SC2154 # variables of the scripts that source this
# The cluster that .ci/cluster_chaos.sh attacks, which sources this file in network, mount and process
# namespaces of its own: hosts on a bridge, etcd, PostgreSQL with Patroni, nodes, and the ledger.

declare -A ip=([a]=10.77.0.11 [b]=10.77.0.12 [c]=10.77.0.13
  [db1]=10.77.0.21 [db2]=10.77.0.22 [db3]=10.77.0.23 [etcd]=10.77.0.31)
databases=(db1 db2 db3)
declare -A node
SHARDS=12
CONVERSATIONS=12
# shellcheck disable=SC2012 # these are plain names
programs=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | tail -1)")

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
  local name
  [ "$(sql "select count(*), count(*) filter (where sync_state = 'sync') from pg_stat_replication
    where state = 'streaming'")" = "2|1" ] || return
  # Patroni chooses no other primary before etcd has the name of the synchronous standby.
  # A copy for a new standby has a name of its own.
  name=$(synchronous_standby) && [ -n "$name" ] && [ -n "${ip[$name]:-}" ] || return
  curl -sS "http://${ip[$name]}:8008/sync" -o "$work/sync.txt" --fail 2>>"$work/curl.txt"
}

synchronous_standby() {
  sql "select application_name from pg_stat_replication where sync_state = 'sync'"
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

# Starts the nodes that ended, as a service manager does.
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
