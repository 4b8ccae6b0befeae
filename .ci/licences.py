"""Holds every dependency against deny.toml: its licence, its source, and what is banned.

Usage: licences.py (in the repository). What `cargo deny check licenses bans sources` looks at,
as far as cargo's own metadata says it; cargo-deny itself takes minutes to compile.
"""

import collections
import json
import re
import subprocess
import sys
import tomllib


def allowed(expression, allow):
    """Whether an SPDX expression can be met by what is allowed."""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either():
        met = both()
        while words and words[0] == "OR":
            words.pop(0)
            met = both() or met
        return met

    def both():
        met = one()
        while words and words[0] == "AND":
            words.pop(0)
            met = one() and met
        return met

    def one():
        word = words.pop(0)
        if word == "(":
            met = either()
            words.pop(0)
            return met
        if words and words[0] == "WITH":
            words.pop(0)
            word = f"{word} WITH {words.pop(0)}"
        return word in allow

    return either()


def main():
    with open("deny.toml", "rb") as file:
        deny = tomllib.load(file)
    asked = ["cargo", "metadata", "--format-version", "1", "--all-features", "--locked"]
    packages = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)["packages"]
    allow = set(deny["licenses"]["allow"])
    exceptions = {entry["crate"]: set(entry["allow"]) for entry in deny["licenses"]["exceptions"]}
    banned = {entry["crate"] for entry in deny["bans"]["deny"]}
    wrong = []
    # One that most come from, and no other.
    sources = collections.Counter(package["source"] for package in packages if package["source"])
    [(registry, _)] = sources.most_common(1)
    if not registry.startswith("registry+"):
        wrong.append(f"most come from {registry}")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        source, licence = package["source"], package["license"]
        if source is not None and source != registry:
            wrong.append(f"{name} comes from {source}")
        if not licence or not allowed(licence, allow | exceptions.get(package["name"], set())):
            wrong.append(f"{name} has the licence {licence}")
        if package["name"] in banned:
            wrong.append(f"{name} is banned")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(packages)} packages, {len(wrong)} against deny.toml")
    return 1 if wrong else 0


if __name__ == "__main__":
    # A checker that lets everything pass would never be noticed.
    assert allowed("MIT OR GPL-3.0", {"MIT"}) and not allowed("MIT AND GPL-3.0", {"MIT"})
    assert allowed("(A OR B) AND C", {"B", "C"}) and not allowed("A WITH x", {"A"})
    sys.exit(main())
