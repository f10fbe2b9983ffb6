"""Plant every fault, and write which tests and audits catch it to docs/mutants.md: `python -m mutants`.

Results are kept in build/mutants: a fault is run again only if it or its file has changed, or if something missed it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from mutants import in_algorithms, in_engines, in_kernel, in_privacy
from mutants.mutant import Mutant, StaleMutantError
from mutants.runner import KEPT, MutantError, Result, run_mutant
from mutants.table import MIN_BY_AUDIT, MIN_BY_TESTS, PAGE, Row, rate_by_audit, rate_by_tests, write_page

MUTANTS = (*in_privacy.MUTANTS, *in_algorithms.MUTANTS, *in_kernel.MUTANTS, *in_engines.MUTANTS)
RESULTS = KEPT / "results.json"


def main() -> int:
    """Run the mutants, and print what caught each; 1 if fewer are caught than wanted, or one could not be run."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--only", help="those whose name or file contains this; the page is then not written")
    parser.add_argument("--again", action="store_true", help="run those too whose results are kept")
    chosen = parser.parse_args()
    known: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows: list[Row] = []
    errors = 0
    for mutant in MUTANTS:
        if chosen.only is not None and chosen.only not in f"{mutant.name} {mutant.file}":
            continue
        try:
            digest = mutant.digest()
            if chosen.again or digest not in known or is_missed(mutant, Result(**known[digest])):
                known[digest] = asdict(run_timed(mutant))
                KEPT.mkdir(parents=True, exist_ok=True)
                RESULTS.write_text(json.dumps(known, indent=1))
        except (MutantError, StaleMutantError) as error:
            errors += 1
            print(f"ERROR {mutant.name}: {error}", flush=True)
            continue
        rows.append((mutant, Result(**known[digest])))
    if not rows or errors:
        return 1
    by_tests, by_audit = rate_by_tests(rows), rate_by_audit(rows)
    print(f"caught by tests: {by_tests:.1%}; by audits, of those in their scope: {by_audit:.1%}")
    if chosen.only is None:
        write_page(PAGE, rows)
    return 0 if by_tests >= MIN_BY_TESTS and by_audit >= MIN_BY_AUDIT else 1


def is_missed(mutant: Mutant, result: Result) -> bool:
    """Return whether the tests or the audit of a mutant have not caught it."""
    return not result.caught_by_test or (mutant.audit is not None and not result.caught_by_audit)


def run_timed(mutant: Mutant) -> Result:
    """Run a mutant, and print what caught it and how long that took."""
    start = time.monotonic()
    result = run_mutant(mutant)
    audit = "out of scope" if mutant.audit is None else result.caught_by_audit or f"MISSED by {mutant.audit!r}"
    words = f"tests: {result.caught_by_test or 'MISSED'}; audit: {audit}"
    print(f"{mutant.file}, {mutant.name} ({time.monotonic() - start:.0f} s)\n    {words}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
