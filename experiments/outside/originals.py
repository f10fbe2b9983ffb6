"""The auditors of the packages dp_auditorium and dp_recorder themselves, which are not on the package index.

They are imported from their repositories, google/differential-privacy (python/dp_auditorium, with tensorflow and etils)
and ObliviousAI/dp-recorder (src, with dp-accounting and tqdm), on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from boltdp._array_types import Doubles
from boltdp.engines.in_memory import ArrayEngine
from boltdp.privacy import release_with_noise
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import Randomness
from boltdp.run_context import Context
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import train
from experiments.outside.faults import FAULTS, put_in_place
from experiments.outside.recorder import NEIGHBOURS, SCHEMA, TRAININGS, Row, declare_sensitivities, make_rows
from experiments.outside.testers import BINS, Tester

#: Rows of a training that is replayed.
ROWS = 40


def _claim(epsilon: float) -> Any:
    from dp_auditorium.configs import privacy_property

    return privacy_property.ApproximateDp(epsilon=epsilon, delta=0.0)


def _test_histogram(first: Doubles, second: Doubles, *, epsilon: float, mistake: float) -> float:
    from dp_auditorium.configs import property_tester_config as config
    from dp_auditorium.testers import histogram_tester

    pilot = len(first) // 10
    low, high = np.quantile(np.concatenate([first[:pilot, 0], second[:pilot, 0]]), (0.05, 0.95))
    tester = histogram_tester.HistogramTester(
        config.HistogramPropertyTesterConfig(
            test_discrete_mechanism=False,
            histogram_size=BINS,
            min_value=float(low),
            max_value=float(max(high, low + 1e-9)),
            approximate_dp=_claim(epsilon),
        )
    )
    return float(tester.estimate_lower_bound(first[pilot:, 0], second[pilot:, 0], mistake))


def _test_hockey_stick(first: Doubles, second: Doubles, *, epsilon: float, mistake: float) -> float:
    from dp_auditorium.configs import property_tester_config as config
    from dp_auditorium.testers import hockey_stick_tester as hockey_stick

    made = config.HockeyStickPropertyTesterConfig(
        training_config=hockey_stick.make_default_hs_training_config(), approximate_dp=_claim(epsilon)
    )
    spread = float(np.abs(first).mean()) or 1.0
    tester = hockey_stick.HockeyStickPropertyTester(made, hockey_stick.make_default_hs_base_model())
    return float(tester.estimate_lower_bound(first / spread, second / spread, mistake))


def _test_mean_discrepancy(first: Doubles, second: Doubles, *, epsilon: float, mistake: float) -> float:
    from dp_auditorium.configs import property_tester_config as config
    from dp_auditorium.testers import mmd_tester

    width = float(np.median(np.abs(first[1:] - first[:-1]).sum(axis=1))) or 1.0
    made = config.MMDPropertyTesterConfig(
        kernel=config.Kernel.KERNEL_LAPLACIAN, bandwidth=1.0 / width, approximate_dp=_claim(epsilon)
    )
    return float(mmd_tester.MMDPropertyTester(made).estimate_lower_bound(first, second, mistake))


ORIGINALS: Mapping[str, Tester] = {
    "histogram": _test_histogram,
    "hockey stick": _test_hockey_stick,
    "mean discrepancy": _test_mean_discrepancy,
}


def replay_by_dp_recorder(settings: Settings) -> str:
    """Record and replay a training with the Auditor of dp_recorder; return what it says, "" for nothing."""
    from dp_recorder.auditing.audit_primitives import Auditor, audit_spec, ensure_equality

    plan = make_plan(SCHEMA, ROWS, settings)
    declared, add_noise = declare_sensitivities(plan.certificate), vars(release_with_noise)["add_noise"]

    def add(vector: Doubles, sensitivity: float, noise: Mechanism) -> Any:
        del sensitivity
        return add_noise(noise, vector, Randomness().make_stream())

    mechanism = audit_spec(
        kind="add_noise",
        input_arg="vector",
        sensitivity_arg="sensitivity",
        metric_fn=lambda one, other: float(np.linalg.norm(one - other)),
    )(add)

    def run(first: Row) -> None:
        columns = zip(*[first, *make_rows(ROWS - 1)], strict=True)
        engine = ArrayEngine.from_arrow(pa.table({name: list(one) for name, one in zip("aby", columns, strict=True)}))
        model = train(engine, SCHEMA, settings, context=Context(seed=1, threads=1))
        ensure_equality(model=repr(model.to_dict()))

    with put_in_place(
        release_with_noise,
        "add_noise",
        lambda _: lambda noise, vector, _: mechanism(vector, declared.get(noise, 0.0), noise),
    ):
        for one, other in NEIGHBOURS:
            auditor = Auditor()
            try:
                with auditor:
                    run(one)
                auditor.set_replay()
                with auditor:
                    run(other)
                auditor.validate_records()
            except (AssertionError, RuntimeError) as fault:
                return str(fault).splitlines()[0]
    return ""


def main() -> None:
    """Print what dp_recorder finds in each training, and with each fault."""
    names = [name for name in TRAININGS if name.startswith(("bolton", "noisy-gd"))]
    for name in names:
        print(f"| nothing | {name} | {replay_by_dp_recorder(TRAININGS[name]) or 'nothing'} |")
    for fault, (plant, training) in FAULTS.items():
        with plant():
            print(f"| {fault} | {training} | {replay_by_dp_recorder(TRAININGS[training]) or 'nothing'} |")


if __name__ == "__main__":
    main()
