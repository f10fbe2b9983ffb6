"""The benchmark datasets, read from the directory that BOLTDP_DATA names (else ../shared/data).

They are public, and their bounds are those of the documented meaning of each column.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pyarrow as pa

from boltdp.errors import DataError, ParameterError
from boltdp.schema.columns import Column
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema
from boltdp.schema.target import Number


@dataclass(frozen=True)
class Benchmark:
    """A dataset: its files, its schema, and the SQL that makes its label if that is not a column.

    >>> BENCHMARKS["mnist"].schema.dims
    785
    """

    name: str
    schema: Schema
    train: str
    test: str | None = None  #: None: split the prepared rows by position
    label: str | None = None  #: SQL over the columns of the file

    def available(self) -> bool:
        """Whether its files are there."""
        return all((data_directory() / file).is_file() for file in (self.train, self.test) if file)

    def source(self, part: str = "train") -> Path | duckdb.DuckDBPyRelation | pa.Table:
        """Its "train" or "test" rows, as `open_source` takes them."""
        if part not in ("train", "test") or (part == "test" and self.test is None):
            parts = "train" if self.test is None else "train or test"
            raise ParameterError(f"the part of {self.name!r} must be {parts}, got {part!r}")
        file = data_directory() / (self.train if part == "train" else str(self.test))
        if not file.is_file():
            raise DataError(
                f"the benchmark data {file.name!r} is not in {str(file.parent)!r}",
                hint="set BOLTDP_DATA to the directory that has it",
            )
        if self.label is None:
            return file
        connection = duckdb.connect()
        return connection.sql(
            f"SELECT {self.label} AS label, * EXCLUDE (label) FROM read_parquet(?)", params=[str(file)]
        )


@dataclass(frozen=True)
class Visits(Benchmark):
    """The RAND Health Insurance Experiment, of which statsmodels has a copy: no file is needed."""

    def available(self) -> bool:
        return find_spec("statsmodels") is not None

    def source(self, part: str = "train") -> pa.Table:
        from statsmodels.datasets import randhie

        return pa.Table.from_pandas(randhie.load_pandas().data, preserve_index=False)


def data_directory() -> Path:
    """Where the benchmark data is.

    >>> data_directory().is_absolute()
    True
    """
    return Path(os.environ.get("BOLTDP_DATA") or "../shared/data").resolve()


def _images(*, clip_norm: float) -> Schema:
    # Bounds symmetric about 0 make an encoded pixel its grey level over 255; the clip norm is then the usual norm of
    # an image, by the published mean and deviation of the pixels.
    pixels = tuple(Numeric(f"f{i}", -255, 255) for i in range(784))
    return Schema(Classes("label", tuple(range(10))), pixels, clip_norm=clip_norm)


def _covertype(classes: tuple[int, ...]) -> Schema:
    # Heights in Colorado and distances within a forest, in metres; angles; shades as grey levels.
    bounds = {
        "Elevation": (1500, 4400),
        "Aspect": (0, 360),
        "Slope": (0, 90),
        "Horizontal_Distance_To_Hydrology": (0, 1500),
        "Vertical_Distance_To_Hydrology": (-300, 700),
        "Horizontal_Distance_To_Roadways": (0, 8000),
        "Hillshade_9am": (0, 255),
        "Hillshade_Noon": (0, 255),
        "Hillshade_3pm": (0, 255),
        "Horizontal_Distance_To_Fire_Points": (0, 8000),
    }
    indicators = [f"Wilderness_Area{i}" for i in range(1, 5)] + [f"Soil_Type{i}" for i in range(1, 41)]
    # Symmetric, so that the indicators that are not set add nothing to the norm.
    bounds.update(dict.fromkeys(indicators, (-1, 1)))
    return Schema(
        Classes("label", classes), tuple(Numeric(name, *ends) for name, ends in bounds.items()), clip_norm=3.0
    )


def _adult() -> Schema:
    # The survey weight is no feature, and `education` says the same as `education_num`.
    bounds = {
        "age": (0, 100),
        "education_num": (1, 16),
        "capital_gain": (0, 100_000),
        "capital_loss": (0, 5_000),
        "hours_per_week": (0, 100),
    }
    # As the dataset's documentation lists them; what is not known is the text "?", and so no category.
    categories = {
        "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
        "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse",
        "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv "
        "Protective-serv Armed-Forces",
        "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
        "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
        "sex": "Female Male",
        "native_country": "United-States Cambodia England Puerto-Rico Canada Germany "
        "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland "
        "Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia "
        "Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
        "Holand-Netherlands",
    }
    return _binary(bounds, categories)


def _protein() -> Schema:
    # The columns have no published meaning: their bounds are round numbers of the size of their values.
    sizes = (
        "200 50 5 100 500 10000 5 5 100 200 5000 5 5 20 500 5000 5 5 10 100 1000 5 5 50 500 5000 5 5 20 100 500 5 10 "
        "50 500 5000 5 10 20 100 1000 5 20 50 200 10000 10 20 50 200 5000 20 5 200 500 10000 5 10 100 200 1000 5 10 "
        "100 200 10000 5 10 50 200 2000 5 1 2"
    )
    return _binary({f"f{i}": (-float(size), float(size)) for i, size in enumerate(sizes.split())}, {}, clip_norm=4.0)


def _connections() -> Schema:
    # Counts within two seconds and of the last 100 or 255 connections, by the documentation of the task; long
    # connections and large transfers are all alike.
    bounds: dict[str, tuple[float, float]] = {"duration": (0, 1000), "src_bytes": (0, 10_000), "dst_bytes": (0, 10_000)}
    bounds |= dict.fromkeys(("count", "srv_count"), (0, 511))
    bounds |= dict.fromkeys(("dst_host_count", "dst_host_srv_count"), (0, 255))
    bounds |= {"wrong_fragment": (0, 3), "hot": (0, 30), "num_failed_logins": (0, 5), "num_compromised": (0, 10)}
    events = "land logged_in root_shell su_attempted num_shells is_guest_login num_root num_file_creations"
    errors = "serror_rate srv_serror_rate rerror_rate srv_rerror_rate"
    services = "same_srv_rate diff_srv_rate srv_diff_host_rate"
    hosts = "same_srv_rate diff_srv_rate same_src_port_rate srv_diff_host_rate"
    shares = f"{events} {errors} {services}".split() + [f"dst_host_{name}" for name in f"{hosts} {errors}".split()]
    bounds |= dict.fromkeys(shares, (0, 1))
    categories = {
        "protocol_type": "icmp tcp udp",
        "flag": "OTH REJ RSTO RSTOS0 RSTR S0 S1 S2 S3 SF SH",
        "service": "auth domain domain_u eco_i ecr_i finger ftp ftp_data http imap4 ntp_u other pop_3 private smtp "
        "ssh telnet time urp_i",
    }
    return _binary(bounds, categories)


def _collisions() -> Schema:
    # Masses and momenta are published in units of their means, angles in units of their deviations.
    jets = [f"jet_{number}" for number in range(1, 5)]
    angles = [f"{name}_{angle}" for name in ("lepton", *jets) for angle in ("eta", "phi")]
    masses = "m_jj m_jjj m_lv m_jlv m_bb m_wbb m_wwbb"
    sizes = ["lepton_pt", "missing_energy_magnitude", *(f"{jet}_pt" for jet in jets), *masses.split()]
    bounds: dict[str, tuple[float, float]] = dict.fromkeys([*angles, "missing_energy_phi"], (-3, 3))
    bounds |= dict.fromkeys((f"{jet}_b_tag" for jet in jets), (0, 3))
    bounds |= dict.fromkeys(sizes, (0, 4))
    return _binary(bounds, {}, clip_norm=3.0)


def _bank() -> Schema:
    # Without the length of the call, which is known only afterwards.
    bounds = {"age": (18, 100), "balance": (-5_000, 20_000), "day": (1, 31), "campaign": (1, 20)}
    bounds |= {"pdays": (-1, 365), "previous": (0, 10)}
    categories = {
        "job": "admin. blue-collar entrepreneur housemaid management retired self-employed services student "
        "technician unemployed unknown",
        "marital": "divorced married single",
        "education": "primary secondary tertiary unknown",
        "default": "no yes",
        "housing": "no yes",
        "loan": "no yes",
        "contact": "cellular telephone unknown",
        "month": "jan feb mar apr may jun jul aug sep oct nov dec",
        "poutcome": "failure other success unknown",
    }
    return _binary(bounds, categories)


def _credit() -> Schema:
    # Amounts in Taiwan dollars up to the usual limit of a card; months in arrears.
    months = range(1, 7)
    bounds: dict[str, tuple[float, float]] = {"limit_bal": (0, 500_000), "age": (18, 80)}
    bounds |= dict.fromkeys(("pay_0", *(f"pay_{month}" for month in months if month > 1)), (-2, 8))
    bounds |= dict.fromkeys((f"bill_amt{month}" for month in months), (0, 500_000))
    bounds |= dict.fromkeys((f"pay_amt{month}" for month in months), (0, 100_000))
    return _binary(bounds, {"sex": "1 2", "education": "1 2 3 4", "marriage": "1 2 3"})


def _hospitals() -> Schema:
    # Without diagnoses, payers and specialties, which have hundreds of codes, and drugs that hardly anybody took.
    bounds = {
        "time_in_hospital": (1, 14),
        "num_lab_procedures": (1, 132),
        "num_procedures": (0, 6),
        "num_medications": (1, 80),
        "number_outpatient": (0, 10),
        "number_emergency": (0, 10),
        "number_inpatient": (0, 10),
        "number_diagnoses": (1, 16),
    }
    changes = "No Steady Up Down"
    drugs = "metformin repaglinide nateglinide glimepiride glipizide glyburide pioglitazone rosiglitazone insulin"
    categories = {
        "race": "Caucasian AfricanAmerican Hispanic Asian Other",
        "gender": "Female Male",
        "age": " ".join(f"[{age}-{age + 10})" for age in range(0, 100, 10)),
        "admission_type_id": "1 2 3 4 5 6 7 8",
        "discharge_disposition_id": "1 2 3 4 5 6 7 11 13 14 18 22 23 25",
        "admission_source_id": "1 2 4 5 6 7 9 17 20",
        "max_glu_serum": "Norm >200 >300",
        "a1cresult": "Norm >7 >8",
        **dict.fromkeys(drugs.split(), changes),
        "change": "No Ch",
        "diabetesmed": "No Yes",
    }
    return _binary(bounds, categories)


def _binary(
    bounds: Mapping[str, tuple[float, float]], categories: Mapping[str, str], *, clip_norm: float | None = None
) -> Schema:
    return Schema(Classes("label", (0, 1)), _columns(bounds, categories), clip_norm=clip_norm)


def _columns(bounds: Mapping[str, tuple[float, float]], categories: Mapping[str, str]) -> tuple[Column, ...]:
    numeric = [Numeric(name, *ends) for name, ends in bounds.items()]
    categorical = [Categorical(name, tuple(listed.split())) for name, listed in categories.items()]
    return (*numeric, *categorical)


def _houses() -> Schema:
    # The borders of California; a block group is meant to have 600 to 3,000 people; incomes in 10,000 dollars. Ages
    # and values are cut off at 52 years and 500,001 dollars in the file.
    bounds = {"longitude": (-124.5, -114.0), "latitude": (32.5, 42.0), "housing_median_age": (0, 52)}
    bounds |= {"total_rooms": (0, 10_000), "total_bedrooms": (0, 2_000)}
    bounds |= {"population": (0, 5_000), "households": (0, 2_000), "median_income": (0, 15)}
    places = Categorical("ocean_proximity", ("<1H OCEAN", "INLAND", "ISLAND", "NEAR BAY", "NEAR OCEAN"))
    return Schema(Number("median_house_value", 0, 500_001), (*_columns(bounds, {}), places))


def _diamonds() -> Schema:
    # Stones of up to 3 carats, and their length, width and depth in millimetres; percentages of the shape.
    bounds = {"carat": (0, 3), "depth": (50, 75), "table": (50, 80), "x": (0, 10), "y": (0, 10), "z": (0, 6)}
    categories = {"color": "D E F G H I J", "clarity": "I1 SI2 SI1 VS2 VS1 VVS2 VVS1 IF"}
    cuts = Categorical("cut", ("Fair", "Good", "Very Good", "Premium", "Ideal"))
    return Schema(Number("price", 0, 20_000), (*_columns(bounds, categories), cuts))


def _wages() -> Schema:
    # Years at school, and years since then by age.
    categories = {
        "ethnicity": "cauc afam",
        "smsa": "no yes",
        "region": "northeast midwest south west",
        "parttime": "no yes",
    }
    return Schema(Number("wage", 0, 20_000), _columns({"education": (0, 18), "experience": (-5, 65)}, categories))


def _visits() -> Schema:
    # The terms of the plans, and what each question could be answered with, as for the demonstration. Hardly anybody
    # sees a doctor more often than 20 times a year.
    bounds: dict[str, tuple[float, float]] = {"lncoins": (0, 4.62), "lpi": (0, 8), "fmde": (0, 8.3), "disea": (0, 60)}
    bounds |= dict.fromkeys(("idp", "physlm", "hlthg", "hlthf", "hlthp"), (-1, 1))
    return Schema(Number("mdvis", 0, 20, counts=True), _columns(bounds, {}))


def _predicting(target: Number, schema: Schema, *, more: Sequence[Column] = ()) -> Schema:
    """One of the columns from the others, and from some that are not in the schema."""
    others = [column for column in schema.columns if column.name != target.column]
    return replace(schema, target=target, columns=(*others, *more))


def _benchmarks() -> Mapping[str, Benchmark]:
    digits, projection = _images(clip_norm=9.0), Projection(dims=50, seed=17)
    listed = (
        Benchmark("mnist", digits, "mnist_train.parquet", "mnist_test.parquet"),
        Benchmark("mnist50", replace(digits, projection=projection), "mnist_train.parquet", "mnist_test.parquet"),
        Benchmark("fashion", _images(clip_norm=13.0), "fashion_mnist_train.parquet", "fashion_mnist_test.parquet"),
        Benchmark("covtype", _covertype((0, 1)), "covtype.parquet", label="(label = 2)::INTEGER"),
        Benchmark("covtype7", _covertype(tuple(range(1, 8))), "covtype.parquet"),
        Benchmark("adult", _adult(), "adult_train.parquet", "adult_test.parquet"),
        Benchmark("protein", _protein(), "protein.parquet"),
        # The published test file has other attacks: it measures something else than the loss to privacy.
        Benchmark("kddcup99", _connections(), "kddcup99_10percent.parquet", label="(label <> 'normal')::INTEGER"),
        Benchmark("higgs", _collisions(), "higgs_subset.parquet"),
        Benchmark("bank", _bank(), "bank_marketing_full.parquet"),
        Benchmark("credit", _credit(), "credit_default.parquet"),
        Benchmark("diabetes", _hospitals(), "diabetes_130_hospitals.parquet", label="(label = '<30')::INTEGER"),
        Benchmark("houses", _houses(), "california_housing.parquet"),
        Benchmark("diamonds", _diamonds(), "diamonds.parquet"),
        Benchmark("wages", _wages(), "cps1988.parquet"),
        Benchmark(
            "hours",
            _predicting(Number("hours_per_week", 0, 100), _adult(), more=[Categorical("label", (0, 1))]),
            "adult_train.parquet",
        ),
        # Whether somebody came back or paid back is known only afterwards.
        Benchmark(
            "stays", _predicting(Number("time_in_hospital", 1, 14), _hospitals()), "diabetes_130_hospitals.parquet"
        ),
        Benchmark("limits", _predicting(Number("limit_bal", 0, 1_000_000), _credit()), "credit_default.parquet"),
        Visits("visits", _visits(), "randhie, of statsmodels"),
    )
    return {benchmark.name: benchmark for benchmark in listed}


BENCHMARKS = _benchmarks()
