"""Judges what pip-audit or `npm audit` reports: advisories.py pip|npm REPORT LOG

Fails on a known vulnerability. An unreachable service is reported and is no failure: the exit codes
do not tell it from a vulnerability. pip-audit exits with 0 even if it knows none of the packages.
"""

import json
import sys
from pathlib import Path


def of_pip(report: dict) -> tuple[int, list[str]]:
    """The number of packages that the service knows, and their vulnerabilities."""
    known = [each for each in report["dependencies"] if "vulns" in each]
    against = [
        f"{each['name']} {each['version']}: {found['id']}, mended in {found['fix_versions']}"
        for each in known
        for found in each["vulns"]
    ]
    return len(known), against


def of_npm(report: dict) -> tuple[int, list[str]]:
    """The same for npm; 0 packages if the report is an error."""
    if "vulnerabilities" not in report:
        return 0, []
    against = [
        f"{name} {each['range']}: {each['severity']}"
        for name, each in report["vulnerabilities"].items()
    ]
    return report["metadata"]["dependencies"]["total"], against


def main() -> int:
    service, report, log = sys.argv[1:]
    try:
        said = json.loads(Path(report).read_text())
    except json.JSONDecodeError:
        # Nothing was reported.
        said = {"dependencies": []}
    known, against = {"pip": of_pip, "npm": of_npm}[service](said)
    for line in against:
        print(line, file=sys.stderr)
    if known == 0:
        lines = [each.get("skip_reason", "") for each in said.get("dependencies", [])]
        lines = lines or Path(log).read_text().splitlines()
        # npm's last line is the path of its own log, so this prints the first.
        print(*(lines[:1] if service == "npm" else lines[-1:]), sep="\n")
        print(f"left out: the service of {service} cannot be asked, or knows none of the packages")
    else:
        print(f"{known} packages, {len(against)} known vulnerabilities")
    return 1 if against else 0


if __name__ == "__main__":
    # Tests the checker itself: nothing else would show that it accepts everything.
    bad = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    assert of_pip({"dependencies": [bad, {"name": "b", "skip_reason": "not found"}]})[0] == 1
    assert of_pip({"dependencies": [bad]})[1] == ["a 1: PYSEC-1, mended in ['2']"]
    bad = {"vulnerabilities": {"a": {"range": "<2", "severity": "high"}}}
    assert of_npm(bad | {"metadata": {"dependencies": {"total": 3}}}) == (3, ["a <2: high"])
    sys.exit(main())
