# Finds Python interpreters and makes virtual environments. For the scripts that source it.
# TREERING_PYTHONS names the interpreters; default: all from 3.10 to 3.13 that are found.
# The script sets $work, its temporary folder, and $client, the folder of the Python package.

fail() {
  echo "python: $1" >&2
  exit 1
}

step() {
  echo "-- $1 ($(date -u +%H:%M:%S))"
}

# Prints one interpreter for each version, oldest version first.
found() {
  local version candidate
  for version in 3.10 3.11 3.12 3.13; do
    for candidate in "python$version" python3 "$HOME"/.pyenv/versions/"$version".*/bin/python; do
      if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
        echo "$candidate"
        break
      fi
    done
  done
}

venv() { # PYTHON FOLDER
  "$1" -m venv "$2" >"$work/venv.log" 2>&1 && return
  # Debian ships `venv` as a separate package.
  apt-get update -qq && apt-get install -y -qq python3-venv
  "$1" -m venv --clear "$2" || { cat "$work/venv.log" >&2; fail "no Python venv"; }
}

# Prints the requirements of the package and of these extras, without building the package.
needed() { # VENV EXTRA...
  "$1/bin/python" - "$client/pyproject.toml" "${@:2}" <<'END'
import sys

try:
    import tomllib
except ModuleNotFoundError:
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *(each for name in sys.argv[2:] for each in extras[name]), sep="\n")
END
}

mapfile -t pythons < <(if [ -n "${TREERING_PYTHONS:-}" ]; then tr ' ' '\n' <<<"$TREERING_PYTHONS"; else found; fi)
[ "${#pythons[@]}" -gt 0 ] || fail "no Python from 3.10 to 3.13"
