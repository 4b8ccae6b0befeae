"""The software bill of materials of the program, in CycloneDX format.

Usage: sbom.py make > treering.cdx.json    sbom.py check FILE...

`make` lists the crates linked into the program on this platform and, as `excluded`, those that only
the build uses. `check` compares such a file, or the one that maturin puts into a wheel, with the same
tree. The tree comes from `cargo tree` and the checksums from Cargo.lock. cargo-cyclonedx is not used,
because it also lists crates of other platforms and of unused features.
"""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "treering-cli"


def tree(edges: str, *options: str) -> list[tuple[int, tuple[str, str], str]]:
    """What the program depends on by these edges: depth, name and version, licence."""
    asked = ["cargo", "tree", "--locked", "--package", PROGRAM, "--features", "full"]
    asked += ["--edges", edges, "--prefix", "depth", "--format", " {p}|{l}", *options]
    said = subprocess.run(asked, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = []
    for line in said.splitlines():
        # With a star, what follows below it was said before.
        package, _, licence = line.removesuffix(" (*)").partition("|")
        depth, name, version = package.split()[:3]
        # An older way to write it.
        licence = re.sub(r"\s*/\s*", " OR ", licence)
        found.append((int(depth), (name, version.removeprefix("v")), licence))
    return found


def names(edges: str, *options: str) -> set[tuple[str, str]]:
    return {package for _, package, _ in tree(edges, *options)}


def checksums() -> dict[tuple[str, str], str | None]:
    """Of all packages of the lock file."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}


def make() -> dict:
    linked = names("normal,no-proc-macro")
    sums = checksums()
    components, needs, above = {}, {}, []
    for depth, package, licence in tree("normal,build"):
        name, version = package
        purl = f"pkg:cargo/{name}@{version}"
        del above[depth:]
        if above:
            needs[above[-1]].add(purl)
        above.append(purl)
        needs.setdefault(purl, set())
        components[purl] = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "scope": "required" if package in linked else "excluded",
            **({"hashes": [{"alg": "SHA-256", "content": sums[package]}]} if sums[package] else {}),
            "licenses": [{"expression": licence}],
            "purl": purl,
        }
    [program] = [purl for purl in components if purl.startswith(f"pkg:cargo/{PROGRAM}@")]
    about = components.pop(program) | {"type": "application"}
    now = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
            "component": about,
        },
        "components": [components[purl] for purl in sorted(components)],
        "dependencies": [{"ref": purl, "dependsOn": sorted(needs[purl])} for purl in sorted(needs)],
    }


def complaints(bill: dict, linked: set, built: set, every: set) -> list[str]:
    """What is wrong with a bill: of what is linked nothing may lack, of tests nothing may be in it."""
    named = {(each["name"], each["version"]) for each in bill["components"]}
    about = bill["metadata"]["component"]
    return [
        *([] if bill["bomFormat"] == "CycloneDX" else ["it is not CycloneDX"]),
        *([] if (about["name"], about["version"]) in every else [f"it is of {about['name']}"]),
        *(f"{name} {version} is not in it" for name, version in sorted(linked - named)),
        *(f"only tests need {name} {version}" for name, version in sorted(named & (every - built))),
        *(f"{name} {version} is not in Cargo.lock" for name, version in sorted(named - {*checksums()})),
        *(f"{each['name']} has no licence" for each in bill["components"] if not each.get("licenses")),
    ]


def check(paths: list[str]) -> None:
    every = names("normal,build,dev", "--target", "all")
    built = names("normal,build", "--target", "all")
    linked = {each for each in names("normal,no-proc-macro") if each[0] != PROGRAM}
    of_tests = sorted(every - built)
    for path in paths:
        bill = json.loads(Path(path).read_text())
        wrong = complaints(bill, linked, built, every)
        assert not wrong, f"{path}: " + "; ".join(wrong)
        # A check that lets everything pass would never be noticed.
        first, *others = bill["components"]
        name, version = of_tests[0]
        assert complaints(bill | {"components": []}, linked, built, every), "an empty bill passes"
        assert complaints(
            bill | {"components": [first | {"name": name, "version": version}, first, *others]},
            linked, built, every,
        ), "a bill with a package of tests passes"
        assert complaints(
            bill | {"components": [first | {"licenses": []}, *others]}, linked, built, every
        ), "a bill without a licence passes"
        print(f"{len(bill['components'])} packages, {len(linked)} of them linked on this platform")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make"]:
            json.dump(make(), sys.stdout, indent=1)
            print()
        case ["check", *paths] if paths:
            check(paths)
        case _:
            sys.exit("usage: sbom.py make | sbom.py check FILE...")
