"""Checks alerts, dashboard and runbook by a scrape. Usage: ops.py URL ALERTS DASHBOARD RUNBOOK"""

import json
import re
import sys
import urllib.request

METRIC = re.compile(r"\b(?:treering|process)_[a-z_]+\b")


def expressions_of_alerts(text):
    """The expressions of all rules, folded lines too."""
    for rule in re.split(r"^\s*- alert: ", text, flags=re.M)[1:]:
        yield re.search(r"\bexpr: (.*?)\n\s+(?:for|labels):", rule, re.S).group(1)


def expressions_of_dashboard(panels):
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", []))
        yield from expressions_of_dashboard(panel.get("panels", []))


def labels_of(expression):
    """Each metric with the labels that the expression filters by."""
    for name, labels in re.findall(r"\b((?:treering|process)_[a-z_]+)\{([^}]*)\}", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)", labels)) - {"instance", "job"}


def main(url, alerts, dashboard, runbook):
    with urllib.request.urlopen(url, timeout=30) as answer:
        scrape = answer.read().decode()
    samples = {}
    for line in scrape.splitlines():
        if not line.startswith("#"):
            name, _, labels = line.rsplit(" ", 1)[0].partition("{")
            samples.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    alerts = open(alerts, encoding="utf-8").read()
    board = json.load(open(dashboard, encoding="utf-8"))
    runbook = open(runbook, encoding="utf-8").read()
    wrong = []
    named = set()
    for expression in [*expressions_of_alerts(alerts), *expressions_of_dashboard(board["panels"])]:
        metrics = set(METRIC.findall(expression))
        named |= metrics
        if not metrics and 'up{job="treering"}' not in expression:
            wrong.append(f"no metric in: {expression}")
        wrong += [f"{name} is not in the scrape: {expression}" for name in metrics - samples.keys()]
        for name, labels in labels_of(expression):
            wrong += [f"{name} has no label {label}" for label in labels - samples.get(name, set())]
    for alert in re.findall(r"- alert: (\w+)", alerts):
        if f"### {alert}\n" not in runbook:
            wrong.append(f"{alert} is not in the runbook")
        if f"#{alert.lower()}\n" not in alerts:
            wrong.append(f"{alert} does not lead to the runbook")
    families = set(re.findall(r"^# TYPE (\S+)", scrape, re.M))
    for family in families:
        if f"`{family}`" not in runbook:
            wrong.append(f"{family} is not in the runbook")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(named)} metrics are named, {len(families)} families scraped, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
