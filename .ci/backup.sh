#!/usr/bin/env bash
# A backup drill with the built program: back up, back up again incrementally, verify, restore, and
# compare the exports of both stores. Runs against a folder and against a bucket of an S3 server.
#
# Usage: .ci/backup.sh [BINARY]    (default: target/debug/treering)
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT

fail() {
  echo "backup: $1" >&2
  exit 1
}

messages() { # FOLDER COUNT
  for number in $(seq "$2"); do
    "$binary" append new message user "message $number of $RANDOM" --data "$1" >/dev/null 2>&1
  done
}

export_of() { # FOLDER
  "$binary" export --format openai-chat --data "$1"
}

drill() { # TARGET NAME [OPTION...]
  local to=$1 name=$2 store=$work/$2 again=$work/$2-again
  shift 2
  messages "$store" 4
  "$binary" backup "$to" --data "$store" "$@"
  messages "$store" 3
  "$binary" backup "$to" --data "$store" "$@"
  "$binary" backup ls "$to" "$@"
  "$binary" backup verify "$to" "$@"
  "$binary" restore "$to" --to "$again" "$@"
  export_of "$store" >"$work/one"
  export_of "$again" >"$work/two"
  cmp "$work/one" "$work/two" || fail "$name: what was restored is not what was there"
  "$binary" verify --deep --data "$again"
}

(umask 077 && openssl rand -hex 32 >"$work/key")
drill "$work/folder" folder
drill "$work/encrypted" encrypted --key-file "$work/key"

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q 'moto[server]' boto3
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$work/venv/bin/moto_server" -H 127.0.0.1 -p "$port" >"$work/moto.log" 2>&1 &
server=$!
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1
export AWS_ENDPOINT=http://127.0.0.1:$port AWS_ALLOW_HTTP=true
"$work/venv/bin/python" - "$AWS_ENDPOINT" <<'PY'
import sys, time
import boto3
for _ in range(100):
    try:
        boto3.client("s3", endpoint_url=sys.argv[1]).create_bucket(Bucket="backups")
        break
    except Exception:
        time.sleep(0.2)
else:
    sys.exit("the S3 server does not answer")
PY
drill s3://backups/treering bucket
drill s3://backups/encrypted bucket-encrypted --key-file "$work/key"
