"""Runs the kinds of attack, one after the other, and prints their results.

Usage: main.py WORK BINARY [--short | --long] [--only KIND[,KIND]] [--seed N] [--round N]
"""

import argparse
import importlib
import os
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples" / "python")]

from world import SHOWN, Broken, Skip, World, descriptors  # noqa: E402

KINDS = [
    "kill", "maintenance", "faults", "powerloss", "sealing", "damage", "repair", "locks",
    "resources", "amplification", "heavy", "fourfold", "concurrency", "permissions", "paths",
]  # fmt: skip


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    parser.add_argument("binary")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help="about four minutes if optimised (the default)")
    form.add_argument("--long", action="store_true", help="about an hour")
    parser.add_argument("--only", default="", help=", ".join(KINDS))
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--round", type=int, default=None, help="only this round of the kind")
    parser.add_argument("--keep", action="store_true", help="leave the folders for a look")
    args = parser.parse_args()
    args.kinds = [k for k in args.only.split(",") if k] or KINDS
    unknown = [k for k in args.kinds if k not in KINDS]
    if unknown:
        parser.error(f"no such kind: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if args.seed is None:
        args.seed = int(time.time())
    return args


def attack(args, kind):
    """Runs one kind. Reports skipped parts; a failure does not stop the other kinds."""
    world = World(Path(args.binary).resolve(), args.work, kind, args.seed, args.long, args.round)
    module = importlib.import_module(f"kinds.{kind}")
    print(f"-- {kind}: {module.__doc__.strip().splitlines()[0]}", flush=True)
    try:
        module.run(world)
    except Skip as why:
        world.skip(str(why))
    except Broken as what:
        world.found(what)
    except Exception:
        # An unexpected refusal is a finding; so is an error of the campaign itself.
        world.found("the attack itself ended: " + traceback.format_exc(limit=-4).strip())
    hidden = sum(max(n - SHOWN, 0) for n in world.shown.values())
    if hidden:
        print(f"  and {hidden} more of the same rounds", flush=True)
    seconds = time.monotonic() - world.began
    counts = ", ".join(f"{n:,} {what}" for what, n in world.counts.items())
    print(f"   {counts or 'nothing'}; {len(world.broken)} broken; {seconds:.0f} s", flush=True)
    return world, seconds


def main():
    args = arguments()
    descriptors()
    form = "long" if args.long else "short"
    print(f"campaign: {args.binary}, {form}, seed {args.seed}", flush=True)
    results = [attack(args, kind) for kind in args.kinds]
    print(f"\n{'kind':<14} {'rounds':>7} {'checks':>9} {'broken':>7} {'skipped':>8} {'seconds':>8}")
    for world, seconds in results:
        c = world.counts
        print(
            f"{world.kind:<14} {c['rounds']:>7,} {c['checks']:>9,} {len(world.broken):>7,}"
            f" {len(world.skipped):>8,} {seconds:>8.0f}"
        )
    broken = sum(len(w.broken) for w, _ in results)
    if broken:
        print(f"\ncampaign: {broken} broken; seed {args.seed}")
        return 1
    print(f"\ncampaign: nothing broke; seed {args.seed}")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Does not wait for threads that still wait for a dead server.
    os._exit(code)
