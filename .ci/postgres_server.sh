# Functions for a PostgreSQL server with one copy of its data, in $work/db. Sourced by scripts.
# The programs are Debian's; as root, they run as the user postgres.

programs=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | tail -1)")

database() { # PROGRAM ARGUMENT...
  case $(id -u) in
    0) (cd / && runuser -u postgres -- "$programs/$1" "${@:2}") ;;
    *) "$programs/$1" "${@:2}" ;;
  esac
}

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Creates a server, whose owner is `owner`, and starts it on $port.
start_postgres() { # SETTING...
  mkdir -m 700 "$work/db"
  [ "$(id -u)" != 0 ] || chown postgres "$work/db"
  port=$(free_port)
  settings=$*
  database initdb --data-checksums --auth=trust --username=owner --no-sync -D "$work/db/data" >"$work/initdb.log"
  run_postgres
}

run_postgres() {
  database pg_ctl -D "$work/db/data" -l "$work/db/log" -w \
    -o "-p $port -k '' -c listen_addresses=127.0.0.1 $settings" start >"$work/pg_ctl.log"
}

stop_postgres() { # MODE
  database pg_ctl -D "$work/db/data" -m "$1" stop >"$work/stop.txt" 2>&1
}
