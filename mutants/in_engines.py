"""Faults in the engines: persons, orders, portions, sums, and what they say of rows."""

from __future__ import annotations

from mutants.mutant import Mutant

PERSONS = "engines/person_limit.py"
BASE = "engines/base.py"
PREPARED = "engines/prepared_rows.py"
STORE = "engines/local_store.py"
DUCKDB = "engines/duckdb.py"
ENCODING = "kernel/columns_to_cells.h"

MUTANTS = (
    # ---- persons
    Mutant(
        "limit forgotten between batches",
        PERSONS,
        "np.minimum(earlier + here, self._limit).tolist()",
        "(0 * here).tolist()",
        "A person counts with more rows than the noise is for.",
        ("engines/test_person_limit.py",),
        audit="bolton, persons",
    ),
    Mutant(
        "one row more than the limit",
        PERSONS,
        "earlier[codes] + rank < self._limit",
        "earlier[codes] + rank <= self._limit",
        "A person counts with one row more than the noise is for.",
        ("engines/test_person_limit.py",),
        audit="noisy-gd, persons",
    ),
    Mutant(
        "rows beyond the limit kept",
        PERSONS,
        "rows[~view_values(within)] = self._neutral",
        "del within",
        "A person counts with more rows than the noise is for.",
        ("engines/test_person_limit.py",),
        audit="bolton, persons",
    ),
    Mutant(
        "limit not applied",
        BASE,
        "if schema.person_id is None or schema.max_rows_per_person is None:",
        "if True:",
        "A person counts with more rows than the noise is for.",
        ("engines/test_person_limit.py",),
        audit="objective, persons",
    ),
    Mutant(
        "rows without an id are not limited",
        PERSONS,
        "        return within\n",
        "        return within | np.asarray(ids.is_null())\n",
        "Rows without an id may all be of one person, and count without a limit.",
        ("engines/test_person_limit.py",),
    ),
    Mutant(
        "two zeros are two persons",
        PERSONS,
        "ids = pc.add(pc.if_else(pc.is_nan(ids), None, ids), 0.0)",
        "ids = pc.if_else(pc.is_nan(ids), None, ids)",
        "A person whose id is written in two ways counts twice.",
        ("engines/test_person_limit.py",),
    ),
    Mutant(
        "all rows of a person in scans",
        BASE,
        "if not limited or schema.person_id is None:",
        "if not limited or True:",
        "A person with more rows than count moves released counts farther than the noise is for.",
        ("evaluation/test_private.py",),
    ),
    # ---- order and portions
    Mutant(
        "rows in their stored order",
        STORE,
        "return compute_permuted_positions(self.start, self.rows, rows=rows, seed=seed)",
        "return np.arange(self.start, self.start + self.rows)",
        "Rows are trained on in the order in which they are stored.",
        ("engines/test_local_store.py",),
    ),
    Mutant(
        "a file not shuffled",
        STORE,
        "sorter.add(block, compute_permuted_positions(at, len(block), rows=rows, seed=seed))",
        "sorter.add(block, np.arange(at, at + len(block)))",
        "Rows in a file are not permuted before each pass as the certificate states.",
        ("engines/test_conformance.py::test_reshuffle_permutes_the_current_order",),
    ),
    Mutant(
        "portions that share rows",
        PREPARED,
        "view._start, view.rows = self._start + start, stop - start",
        "view._start, view.rows = self._start, stop - start",
        "A row is in several portions, and is charged for one.",
        ("engines/test_conformance.py", "engines/test_stores.py"),
        audit="bolton, partitions",
    ),
    Mutant(
        "partitions that exchange rows",
        PREPARED,
        "            rows.reshuffle(seed)\n",
        "            prepared.reshuffle(seed)\n",
        "A row is in other partitions in later passes, and moves all of them.",
        ("algorithms/test_partitions.py", "engines/test_conformance.py"),
        audit="bolton, partitions, fresh",
    ),
    Mutant(
        "samples from the wrong portion",
        PREPARED,
        "np.where(part < 0, -1, part + start)",
        "np.where(part < 0, -1, part)",
        "Sampled rows of one portion are those of another.",
        ("engines/test_conformance.py", "engines/test_stores.py"),
    ),
    Mutant(
        "partitions that may overlap",
        PREPARED,
        "if any(stop > start for (_, stop), (start, _) in pairwise(bounds)):",
        "if False:",
        "A row could be in two partitions.",
        ("engines/test_conformance.py", "engines/test_stores.py", "algorithms/test_partitions.py"),
    ),
    Mutant(
        "rows without an order in SGD",
        PREPARED,
        "        if not self.permuted:\n",
        "        if False:\n",
        "SGD could run over rows that were prepared for sums, in any order.",
        ("engines/test_conformance.py", "engines/test_stores.py"),
    ),
    Mutant(
        "rows summed twice",
        PREPARED,
        "                each.add(block)\n",
        "                each.add(block)\n                each.add(block)\n",
        "A row moves every sum twice as far as the noise is for.",
        ("algorithms/test_noisy_gd.py::test_a_descent_is_the_reference_with_its_noise_taken_away",),
        audit="noisy-gd",
    ),
    Mutant(
        "data that grows while it is read",
        STORE,
        "    if start + count != rows:\n        raise DataError(_CHANGED_ROWS.format(rows))\n",
        "",
        "Rows that are missing would be trained on as whatever was in memory.",
        ("engines/test_local_store.py",),
    ),
    # ---- what is left of rows
    Mutant(
        "a spool file with a name",
        STORE,
        "tempfile.TemporaryFile(dir=self._directory, buffering=0)",
        "tempfile.NamedTemporaryFile(dir=self._directory, buffering=0)",
        "Private rows have a name in a directory, and stay there if the process is killed.",
        ("engines/test_local_store.py",),
    ),
    Mutant(
        "errors that quote rows",
        DUCKDB,
        '    if not set(re.findall(r"\\w+", quoted.casefold())) <= known:\n        return None\n',
        "",
        "An error message quotes values of rows.",
        ("engines/test_duckdb.py",),
    ),
    Mutant(
        "a query that reads any file",
        DUCKDB,
        '            connection.execute("SET enable_external_access = false").fetchall()\n',
        "",
        "A query can read files that were not named, past the ledger.",
        ("engines/test_duckdb.py", "engines/test_sources.py"),
    ),
    Mutant(
        "rows in any order",
        DUCKDB,
        '"preserve_insertion_order": "true"',
        '"preserve_insertion_order": "false"',
        "The order of the rows depends on how DuckDB reads them, and may differ between scans.",
        ("engines/test_duckdb.py", "engines/test_threads.py"),
    ),
    Mutant(
        "cells out of bounds",
        ENCODING,
        "    x = x > high ? high : x;\n    cell = (float) ((x - middle) / half);",
        "    cell = (float) ((x - middle) / half);\n    if (x > high)\n        return cell;",
        "Cells beyond their declared bounds are not clipped to them.",
        ("kernel/test_columns_to_cells.py", "encoding/test_encode.py"),
    ),
)
