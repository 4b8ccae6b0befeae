# Functions for an S3 server in $work, without real credentials. Sourced by scripts.

# Starts it, sets $s3 to its process, and exports what clients need.
start_s3() {
  python3 -m venv "$work/s3"
  "$work/s3/bin/pip" install -q 'moto[server]' boto3
  local port
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  "$work/s3/bin/moto_server" -H 127.0.0.1 -p "$port" >"$work/s3.log" 2>&1 &
  s3=$!
  export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1
  export AWS_ENDPOINT=http://127.0.0.1:$port AWS_ALLOW_HTTP=true
}

create_bucket() { # NAME
  "$work/s3/bin/python" - "$AWS_ENDPOINT" "$1" <<'PY'
import sys, time
import boto3
for _ in range(100):
    try:
        boto3.client("s3", endpoint_url=sys.argv[1]).create_bucket(Bucket=sys.argv[2])
        break
    except Exception:
        time.sleep(0.2)
else:
    sys.exit("the S3 server does not answer")
PY
}
