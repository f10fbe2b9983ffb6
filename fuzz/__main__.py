"""Feed damaged input to every reader and to the C kernel: `python -m fuzz [--cases N | --hours H]`.

The same numbers make the same cases: a finding names its case, and `--only TARGET --from CASE --cases 1` repeats it.
The kernel is built with AddressSanitizer and UndefinedBehaviorSanitizer and runs in a process of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings

from fuzz.sanitized import run_sanitized, use_sanitized_kernel

use_sanitized_kernel()

from fuzz import extension, parsers, states  # noqa: E402
from fuzz.target import Finding, Target, try_case  # noqa: E402

CASES = 20_000


def main() -> int:
    """Run the cases and print what came of them; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, help=f"of each target, at weight 100 (default {CASES:,})")
    parser.add_argument("--hours", type=float, help="go on with new cases for so long instead")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", help="one target by its name")
    parser.add_argument("--kernel", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    plain = (*parsers.TARGETS, *extension.TARGETS)
    targets = states.TARGETS if chosen.kernel else plain
    warnings.simplefilter("error")  # a warning shows a case that nobody thought of
    known = [target.name for target in (*plain, *states.TARGETS)]
    if chosen.only is not None and chosen.only not in known:
        parser.error(f"there is no target {chosen.only!r}; there are {', '.join(known)}")
    found = 0
    for target in targets:
        if chosen.only in (None, target.name):
            found += _run(target, chosen.first, chosen.cases, chosen.hours)
    if not chosen.kernel and chosen.only not in [target.name for target in plain]:
        # A crash of the child is a finding as well: the sanitizers abort it.
        found += run_sanitized([*sys.argv[1:], "--kernel"]) != 0
    if not chosen.kernel:
        print("nothing found" if not found else f"FOUND: {found}", flush=True)
    return 1 if found else 0


def _run(target: Target, first: int, cases: int, hours: float | None) -> int:
    """Run a target's cases, and print their number and how they ended."""
    ended = {"taken": 0, "refused": 0}
    count = max(1, cases * target.weight // 100)
    target.prepare()
    start, number, findings = time.monotonic(), first, 0
    while time.monotonic() - start < hours * 3600 if hours else number < first + count:
        try:
            ended[try_case(target, number)] += 1
        except Finding as finding:
            findings += 1
            print(f"FINDING {finding}", flush=True)
            traceback.print_exception(finding.__cause__, file=sys.stdout)
            if findings == 5:
                break
        number += 1
    seconds = time.monotonic() - start
    words = f"{ended['taken']:,} taken, {ended['refused']:,} refused, {findings} found"
    print(f"{target.name}: {number - first:,} cases in {seconds:.0f} s: {words}", flush=True)
    return findings


if __name__ == "__main__":
    sys.exit(main())
