"""Tables of results, for papers and notebooks."""

import csv
import io
import math
import re
import sys

import numpy as np
import pytest
import scipy.stats

import digrad as dg
from digrad.core.method_facts import method_facts
from digrad.errors import ArgumentError
from digrad.paper.claims import Claim, ClaimTable
from digrad.paper.link_bias import Bias

TABLE = dg.Table(({"method": "A & B_1", "loss": 1.25e-7, "steps": 10}, {"method": "C", "loss": math.inf}))


def test_csv_keeps_every_digit_and_leaves_what_is_absent_empty(tmp_path):
    path = tmp_path / "table.csv"
    text = TABLE.to_csv(path)
    assert path.read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows == [
        {"method": "A & B_1", "loss": "1.25e-07", "steps": "10"},
        {"method": "C", "loss": "inf", "steps": ""},
    ]


def test_latex_escapes_text_and_writes_powers(tmp_path):
    path = tmp_path / "table.tex"
    lines = TABLE.to_latex(path, digits=2).splitlines()
    assert path.read_text().splitlines() == lines
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[4:6] == [r"A \& B\_1 & $1.2 \times 10^{-7}$ & 10 \\", r"C & $\infty$ & -- \\"]


def test_latex_shows_signs_that_its_default_fonts_show_as_others():
    (line,) = dg.Table(({"row": "|F| <= G > 0"},)).to_latex().splitlines()[4:5]
    assert line == r"\textbar{}F\textbar{} \textless{}= G \textgreater{} 0 \\"


def test_table_of_a_paper_has_means_with_intervals_and_distances_from_the_minimum():
    network, problem = dg.Network(dg.graphs.example5()), dg.problems.example_quadratic()
    methods = [dg.CGT(0.02, 5.0), dg.DGD(0.02)]
    traces = dg.compare(methods, problem, network, steps=30, seeds=3, x0="normal")
    columns = ("method", "excess_loss", "distance", "worst_distance", "bytes_sent")
    table = dg.results_table(traces, problem=problem, columns=columns, statistic="mean")
    assert table.columns == list(columns)
    for row, ensemble in zip(table, traces.values(), strict=True):
        away = np.array([trace.final_x - 1 / 3 for trace in ensemble.traces])  # [seeds, n, d]
        worst = np.linalg.norm(away, axis=2).max(axis=1)
        expected = scipy.stats.t.interval(0.95, 2, worst.mean(), worst.std(ddof=1) / np.sqrt(3))
        mean, half = row["worst_distance"]
        np.testing.assert_allclose((mean - half, mean + half), expected, rtol=1e-10)
        # The mean curvature is 3 in both coordinates.
        square = np.linalg.norm(away.mean(axis=1), axis=1) ** 2
        np.testing.assert_allclose(row["excess_loss"].mean, 1.5 * square.mean(), rtol=1e-9)
    line = table.to_latex().splitlines()[4]
    assert re.fullmatch(r"CGT( & \$[^$]* \\pm [^$]*\$){3} & \d+ \\\\", line), line
    assert "±" in str(table)
    assert "±" in table.to_csv()
    medians = dg.results_table(traces, problem=problem)
    assert medians[0]["worst_distance"] == np.median(
        [np.linalg.norm(trace.final_x - problem.solve().x, axis=1).max() for trace in traces["CGT"].traces]
    )
    with pytest.raises(ArgumentError, match="Did you mean `distance`"):
        dg.results_table(traces, problem=problem, columns=["distanc"])


def test_every_table_of_the_library_can_be_written(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "jinja2", None
    )  # which pandas wants for LaTeX, and digrad does not install
    network, problem = dg.Network(dg.graphs.example5()), dg.problems.example_quadratic()
    claim = Claim(1, "c", "s", "run", "m", "holds", "r")
    traces = dg.compare([dg.CGT(0.05, 5.0)], problem, network, steps=10)
    found = dg.sweep(dg.AB, problem, network, steps=10, grid={"step_size": [0.01, 1.0]})
    tables = [
        dg.results_table(traces),
        ClaimTable("t", [claim], [], {}).table(),
        dg.Table.of(method_facts(["CGT", "AB"])),
        dg.Table.of(found.table),
        dg.Table.of(found.best()),
        dg.Table.of([Bias("p", "last value", None, 0.5, "not converged")]),
    ]
    for table in tables:
        assert len(list(csv.reader(io.StringIO(table.to_csv())))) == 1 + len(table)
        assert table.to_latex().count(r"\\") == 1 + len(table)


def test_notebooks_show_runs_networks_and_certificates():
    network, problem = dg.Network(dg.graphs.example5()), dg.problems.example_quadratic()
    ensemble = dg.compare([dg.CGT(0.05, 5.0)], problem, network, steps=400, seeds=2, x0="normal")["CGT"]
    assert "<td>converged</td>" in ensemble.traces[0]._repr_html_()
    assert ensemble._repr_html_().count("<tr>") == 1 + 3
    assert "1.481, 1.111, 0.5556" in network._repr_html_()
    certificate = dg.theory.certify(problem, network, threshold=5.0, x0=[1.0, 1.0])
    assert "holds: alpha = " in certificate._repr_html_()


def test_notebooks_show_names_of_users_as_text():
    assert "<b>" not in dg.Table(({"<b>": "<b>"},))._repr_html_()
