"""Charges for the tests, and programs that other processes run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import boltdp
from boltdp.losses import Logistic
from boltdp.privacy.accounting.spent_budget import Release
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
from boltdp.privacy.training_problem import Problem

PROBLEM = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)


def charge(epsilon: float = 0.1, delta: float = 0.0) -> Release:
    """A release within a budget."""
    budget = Budget(epsilon, delta)
    return Release(budget, make_objective_perturbation(PROBLEM, budget))


#: Waits for a line, so that all begin at once; then tries to reserve, and tells what came of it.
RESERVE = """
import sys
from boltdp.ledger import BudgetExceeded, open_ledger
from tests.ledger.charges import charge
ledger, asked = open_ledger(sys.argv[1]), charge()
print("ready", flush=True)
sys.stdin.readline()
try:
    reservation = ledger.reserve("visits", asked)
    print("released", flush=True)
    reservation.commit("sha256:" + "0" * 64)
except BudgetExceeded:
    print("refused", flush=True)
"""


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process of Python."""
    package, tests = Path(boltdp.__file__).parents[1], Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{package}:{tests}", "PATH": "/usr/bin:/bin", "USER": "tester"},
    )


def race(address: str, processes: int) -> list[str]:
    """What each of so many processes says that all want a tenth of the budget at once."""
    running = [started(RESERVE, address) for _ in range(processes)]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return [one.communicate()[0].strip() for one in running]
