"""A specification is read back as it was written, and what is wrong with one is said in one line."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from digrad import graphs
from digrad.cli.main import digrad
from digrad.errors import SpecError
from digrad.graphs.parse import NAMED
from digrad.links import Links, compressors
from digrad.noise import StudentT
from digrad.schedules import InverseSqrt
from digrad.specs import load_spec, parse_spec, preset
from digrad.specs.graph_table import GraphTable
from docs_pages import blocks, titled

BASE = {
    "name": 'name = "tiny"',
    "steps": "steps = 50",
    "graph": 'graph = {kind = "example5"}',
    "problem": 'problem = {kind = "example_quadratic"}',
    "methods": "methods.CGT = {step_size = 0.05, threshold = 5.0}",
}
CLOCK = 'links = {compute = {distribution = "uniform", low = 0.5, high = 1.0}, latency = 2.5, deadline = 2}'
LOGISTIC = 'problem = {kind = "logistic", data = "digits"'


def text_with(**changes: str) -> str:
    """The smallest valid specification with lines replaced, or added."""
    return "\n".join({**BASE, **changes}.values())


BAD = [  # what is replaced, by which line, the key that the message names, the nearest valid one
    ("steps", 'steps = "3"', "steps", ""),
    ("steps", "steps = 0", "steps", ""),
    ("steps", "steps = 2.5", "steps", ""),
    ("steps", "steps = true", "steps", ""),
    ("steps", "", "steps", ""),
    ("steps", "stesp = 50", "stesp", "steps"),
    ("name", 'name = ""', "name", ""),
    ("seed", "seed = -1", "seed", ""),
    ("dtype", 'dtype = "float16"', "dtype", "float64"),
    ("start", 'start = "normla"', "start", "normal"),
    ("start", "start = [1, 2, 3]", "start", ""),
    ("start", 'start = "model"', "start", ""),
    ("engine", 'engine = "torch"', "engine", ""),
    ("problem", 'problem = {kind = "images"}', "engine", ""),
    ("problem", 'engine = "torch"\nproblem = {kind = "images"}', "batch_size", ""),
    ("problem", 'engine = "torch"\nbatch_size = 4\nproblem = {kind = "images"}', "start", ""),
    ("tolerance", "tolerance = nan", "tolerance", ""),
    ("noise", "gradient_noise = 0.1", "gradient_noise", ""),
    (
        "noise",
        'gradient_noise = {distribution = "student", scale = 1}',
        "gradient_noise.distribution",
        "student_t",
    ),
    ("noise", 'gradient_noise = {distribution = "student_t", scale = 1}', "gradient_noise.df", ""),
    ("noise", 'gradient_noise = {distribution = "student_t", df = 1, scale = 1}', "gradient_noise", ""),
    ("batch_size", "batch_size = 8", "batch_size", ""),
    ("problem", f'batch_size = 400\nsampling = "epoch"\n{LOGISTIC}}}', "batch_size", ""),
    ("graph", "graph = 3", "graph", ""),
    ("graph", "graph = {}", "graph", ""),
    ("graph", 'graph = {kind = "rign", n = 5}', "graph.kind", "ring"),
    ("graph", 'graph = {kind = "ring"}', "graph.n", ""),
    ("graph", 'graph = {kind = "ring", n = 5, k = 2}', "graph.k", ""),
    ("graph", 'graph = {kind = "ring", n = 0}', "graph", ""),
    ("graph", 'graph = {kind = "ring", n = 3}', "graph", ""),
    ("graph", 'graph = {file = "absent.json"}', "graph", ""),
    ("graph", 'graph = {kind = "out_star", n = 5}', "methods.CGT", ""),
    ("graph", 'graph = {kind = "example5", split = 2, random_edges = 0.5}', "graph", ""),
    ("graph", 'graph = {kind = "example5", random_edges = 1.5}', "graph", ""),
    ("graph", 'graph = {kind = "example5", split = 0}', "graph.split", ""),
    ("graph", 'graph = {kind = "example5", every = 2.5}', "graph.every", ""),
    ("graph", 'graph = {kind = "example5", edges_seed = 1}', "graph.edges_seed", ""),
    ("graph", 'graph = {kind = "example5", evry = 2}', "graph.evry", "every"),
    ("links", 'links = {compressor = "int8"}', "links.compressor", ""),
    (
        "links",
        'links.compute = {distribution = "normal", mean = 1.0}',
        "links.compute.distribution",
        "uniform",
    ),
    ("links", 'links.awake = [1.0, "y"]', "links.awake", ""),
    ("links", 'links.latency = "1 s"', "links.latency", ""),
    ("links", 'links.latency = {distribution = "uniform", low = 1.0}', "links.latency.high", ""),
    ("links", 'links = {compress = "bfloat16"}', "links.compress", "compressor"),
    ("mixing", 'mixing = {R_file = "absent.csv"}', "mixing.R_file", ""),
    ("problem", 'problem = {kind = "cosh", centre = [[1.0]]}', "problem.centre", "center"),
    (
        "problem",
        'problem = {kind = "logistic", data = "digits", partition = {schem = "iid"}}',
        "problem.partition.schem",
        "scheme",
    ),
    ("problem", 'problem = {kind = "logistc"}', "problem.kind", "logistic"),
    ("problem", "problem = {}", "problem.kind", ""),
    ("problem", 'problem = {kind = "logistic"}', "problem.data", ""),
    ("problem", LOGISTIC[:-1] + 's"}', "problem", "digits"),
    ("problem", LOGISTIC + ', partition = "sortd"}', "problem.partition.scheme", "sorted"),
    ("problem", LOGISTIC + ', partition = {scheme = "dirichlet"}}', "problem", ""),
    ("problem", LOGISTIC + ', reg_weight = "1"}', "problem.reg_weight", ""),
    ("problem", LOGISTIC + ", reg_weigt = 1}", "problem.reg_weigt", "reg_weight"),
    ("problem", LOGISTIC + ", reg_weight = [1, 2]}", "problem", ""),
    ("problem", LOGISTIC + ', agent_weights = "sample"}', "problem.agent_weights", ""),
    ("problem", LOGISTIC + ", agent_weights = [1, 2]}", "problem", ""),
    (
        "problem",
        'problem = {kind = "quadratic", curvature = [[1], [2, 3]], linear = [[1]]}',
        "problem",
        "",
    ),
    ("sweep", 'sweep = {graphs = {graph = {kind = "complete", n = 5}}}', "sweep.graphs.graph", ""),
    ("problem", 'problem = {kind = "cosh", center = "1"}', "problem.center", ""),
    ("sweep", "sweep.grid = {}", "sweep.grid", ""),
    ("sweep", "sweep.grid.step_size = []", "sweep.grid.step_size", ""),
    ("sweep", "sweep.grid.step_size = 3", "sweep.grid.step_size", ""),
    ("sweep", "sweep.grid.step_size = {low = 1, high = 2}", "sweep.grid.step_size.count", ""),
    ("sweep", "sweep.grid.step_size = {low = 0, high = 2, count = 3}", "sweep.grid.step_size", ""),
    ("sweep", "sweep.random.step_size = {low = 1, hig = 2}", "sweep.random.step_size.hig", "high"),
    (
        "methods",
        'methods.DiLoCo = {step_size = 0.05, direction = "adam"}',
        "methods.DiLoCo.direction",
        "",
    ),
    ("methods", "methods = {}", "methods", ""),
    ("methods", "methods.CGT = 3", "methods.CGT", ""),
    ("methods", "methods.CTG = {step_size = 1.0}", "methods.CTG.method", "CGT"),
    ("methods", "methods.CGT = {step_sise = 0.05, threshold = 5.0}", "methods.CGT.step_sise", "step_size"),
    ("methods", "methods.CGT = {threshold = 5.0}", "methods.CGT.step_size", ""),
    ("methods", "methods.AB = {step_size = -1}", "methods.AB", ""),
    ("methods", 'methods.AB = {step_size = "1"}', "methods.AB.step_size", ""),
    ("methods", "methods.AB = {step_size = [1, 2]}", "methods.AB", ""),
    (
        "methods",
        'methods.AB = {step_size = {schedule = "inverse_sqr", scale = 1}}',
        "methods.AB.step_size.schedule",
        "inverse_sqrt",
    ),
    (
        "methods",
        'methods.AB = {step_size = {schedule = "inverse", scal = 1}}',
        "methods.AB.step_size.scal",
        "scale",
    ),
    ("methods", 'methods.AB = {step_size = {schedule = "inverse", scale = 1e-322}}', "methods.AB", ""),
    (
        "methods",
        'methods.AB = {step_size = {schedule = "inverse", scale = 1e300, offset = 1e-300}}',
        "methods.AB",
        "",
    ),
    (
        "methods",
        'dtype = "float32"\nmethods.AB = {step_size = {schedule = "constant", value = 1e-60}}',
        "methods.AB",
        "",
    ),
    (
        "methods",
        'methods."my DGD" = {method = "DGD", step_size = 1, mixing = "rwo"}',
        'methods."my DGD".mixing',
        "row",
    ),
]


@pytest.mark.parametrize(("replaced", "line", "key", "near"), BAD, ids=[line for _, line, *_ in BAD])
def test_bad_specification_is_refused_in_one_line_that_names_file_and_key(
    replaced: str, line: str, key: str, near: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text_with(**{replaced: line}), "run.toml").build()
    message = str(caught.value)
    assert message.startswith(f"run.toml: `{key}`")
    assert ("Did you mean" in message) == bool(near)
    assert f"`{near}`" in message or not near
    assert "\n" not in message


def test_invalid_toml_is_refused_with_line_and_column() -> None:
    with pytest.raises(SpecError, match=r"run.toml: not valid TOML: .*line 1, column 9"):
        parse_spec("steps = = 3", "run.toml")


def test_unreadable_file_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent.toml: cannot be read \(No such file or directory\)"):
        load_spec(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="it is not a UTF-8 text file"):
        load_spec(tmp_path / "binary.toml")


def test_the_number_of_further_problems_is_told() -> None:
    with pytest.raises(SpecError, match=r"\(and 1 more\)$"):
        parse_spec(text_with(steps="steps = 0.5", seed='seed = "1"'))


def test_written_specification_is_read_back_as_equal() -> None:
    spec = preset("demo")
    again = parse_spec(spec.to_toml(), "again")
    assert again == spec
    assert again.to_toml() == spec.to_toml()


def test_every_kind_of_value_survives_a_round_trip() -> None:
    spec = parse_spec(
        text_with(
            problem='problem = {kind = "quadratic", curvature = [[1, 0.1], [2, 1e-300]], linear = [[1, 2], [3, -4]]}',
            graph='graph = {kind = "random_digraph", n = 2, p = 0.5, seed = 7}',
            start="start = [0.1, -2]",
            methods='methods."a.b" = {method = "CGT", threshold = inf, step_size = {schedule = "inverse", scale = 1}}',
        )
    )
    assert parse_spec(spec.to_toml()) == spec
    method = spec.build().methods["a.b"]
    assert method.threshold == float("inf")
    assert method.step_size(1) == 0.5


def test_specifications_differ_when_a_value_does() -> None:
    assert parse_spec(text_with()) != parse_spec(text_with(steps="steps = 51"))
    assert parse_spec(text_with(), "one") == parse_spec(text_with(), "other")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    graphs.write(graphs.example5(), tmp_path / "graph.json")
    np.savetxt(tmp_path / "R.csv", np.full((5, 5), 0.2), delimiter=",")
    text = text_with(graph='graph = {file = "graph.json"}', mixing='mixing = {R_file = "R.csv"}')
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(
        SpecError, match=r"run.toml: `mixing`: .*R"
    ):  # all pairs have weight, the graph has 7 edges
        load_spec(tmp_path / "run.toml").build()
    graphs.write(graphs.complete(5), tmp_path / "graph.json")
    spec = load_spec(tmp_path / "run.toml")
    assert np.array_equal(spec.build().network.R.matrix.toarray(), np.full((5, 5), 0.2))
    assert parse_spec(spec.to_toml(), base="/elsewhere") == spec


def test_data_file_is_relative_to_the_file(tmp_path: Path) -> None:
    lines = [f"{sign:+d} 1:{value}" for sign, value in ((1, 0.5), (-1, 0.1), (1, 0.7), (-1, 0.2), (1, 0.3))]
    (tmp_path / "five.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "run.toml").write_text(text_with(problem='problem = {kind = "logistic", data = "five.txt"}'))
    assert load_spec(tmp_path / "run.toml").build().problem.sizes == (1, 1, 1, 1, 1)


@pytest.mark.usefixtures("no_figures")
def test_own_problem_of_the_page_runs_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for title, block in titled("guides/problem.md").items():
        (tmp_path / title.removeprefix("file: ")).write_text(block)
    (command,) = blocks("guides/problem.md", "sh")
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(digrad, command.split()[1:])
    assert ran.exit_code == 0, ran.output
    final = json.loads((tmp_path / "stations" / "summary.json").read_text())["CGT"]["final"]
    problem = load_spec(tmp_path / "stations.toml").build().problem
    assert problem.n_agents == 4
    assert final["loss"] == pytest.approx(problem.solve().loss, abs=1e-6)
    # The specification stored with the run finds the file from anywhere.
    monkeypatch.chdir("/")
    stored = load_spec(tmp_path / "stations" / "spec.toml").build().problem
    assert stored.content_hash == problem.content_hash


OWN = """
import digrad as dg

def make(agents, fault=None):
    return fault and {}[fault] or dg.problems.cosh(center=[[1.0]] * agents)

def none(agents):
    pass
"""


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("absent.py:make", "there is no file"),
        ("own.py:mak", "own.py does not define 'mak'"),
        ("own.py:none", "must return a Problem, but it returns a NoneType"),
        ('own.py:make", fault = "x', "failed: KeyError: 'x'"),
        ('own.py:make", other = "x', "unexpected keyword argument 'other'"),
        ("broken.py:make", "SyntaxError"),
        ("quits.py:make", "SystemExit: 3"),
    ],
)
def test_own_problem_that_fails_is_one_line(tmp_path: Path, kind: str, reason: str) -> None:
    files = {"own": OWN, "broken": "def make(:", "quits": "raise SystemExit(3)"}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    spec = parse_spec(text_with(problem=f'problem = {{kind = "{kind}"}}'), "run.toml", base=tmp_path)
    with pytest.raises(SpecError) as caught:
        spec.build()
    assert str(caught.value).startswith("run.toml: `problem`")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_schedules_and_numbers_per_agent_reach_the_method() -> None:
    methods = """
    methods.AB = {step_size = {schedule = "inverse_sqrt", scale = 0.5}}
    methods.CGT = {step_size = [0.1, 0.2, 0.3, 0.4, 0.5], threshold = 5}
    """
    built = parse_spec(text_with(methods=methods)).build()
    assert built.methods["AB"].step_size == InverseSqrt(scale=0.5)
    assert built.methods["CGT"].step_size.shape == (5, 1)


def test_infinite_threshold_and_batch_of_the_smallest_agent_are_accepted() -> None:
    methods = 'methods.CGT = {step_size = 0.1, threshold = {schedule = "constant", value = inf}}'
    epochs = 'batch_size = 359\nsampling = "epoch"'
    built = parse_spec(text_with(problem=f"{LOGISTIC}}}", epochs=epochs, methods=methods)).build()
    assert built.options["batch_size"] == min(built.problem.sizes)


def test_normal_start_is_scaled_and_differs_between_seeds() -> None:
    spec = parse_spec(text_with(start='start = "normal"', scale="start_scale = 0.5"))
    first, second = (spec.model_copy(update={"seed": seed}).build().x0 for seed in (0, 1))
    assert first.shape == (5, 2)
    assert not np.array_equal(first, second)
    assert np.array_equal(2 * first, parse_spec(text_with(start='start = "normal"')).build().x0)


def test_graph_table_has_a_key_for_every_argument_of_every_generator() -> None:
    arguments = {name for make in NAMED.values() for name in inspect.signature(make).parameters}
    assert arguments <= set(GraphTable.model_fields)


@pytest.mark.parametrize(
    ("keys", "edges"),
    [
        ('kind = "one_peer_exponential", n = 5', [5, 5, 5, 5]),
        ('kind = "example5", split = 3', [3, 2, 2, 3]),
        ('kind = "example5", every = 2', [7, 0, 7, 0]),
        ('kind = "example5", split = 3, every = 2', [3, 0, 2, 0]),
        ('kind = "example5", random_edges = 0.5, edges_seed = 1', None),
    ],
)
def test_graph_that_changes_with_time_reaches_the_network(keys: str, edges: list[int] | None) -> None:
    spec = parse_spec(text_with(graph=f"graph = {{{keys}}}"))
    network = spec.build().network
    found = [network.at(k).union.n_edges for k in range(4)]
    expected = graphs.random_edges(graphs.example5(), 0.5, seed=1)
    assert found == (edges or [expected.at(k).n_edges for k in range(4)])
    assert network.period != 1
    assert parse_spec(spec.to_toml()) == spec


def test_gradient_noise_reaches_the_run() -> None:
    line = 'gradient_noise = {distribution = "student_t", df = 1.5, scale = 0.1}'
    spec = parse_spec(text_with(noise=line))
    assert spec.build().options["gradient_noise"] == StudentT(df=1.5, scale=0.1)
    assert parse_spec(spec.to_toml()) == spec
    assert parse_spec(text_with()).build().options["gradient_noise"] is None


def test_links_reach_the_network() -> None:
    spec = parse_spec(text_with(links='links = {compressor = "bfloat16"}'))
    assert spec.build().network.links == Links(compressor=compressors.bfloat16())
    assert parse_spec(spec.to_toml()) == spec
    assert parse_spec(text_with()).build().network.links is None


@pytest.mark.parametrize("links", ["", 'links.compressor = "bfloat16"', "links.loss = 0.1", CLOCK])
def test_stored_specification_builds_the_same_network(links: str) -> None:
    spec = parse_spec(f"""
        name = "round trip"
        steps = 1
        graph = {{kind = "example5"}}
        {links}
        problem = {{kind = "example_quadratic"}}
        methods.CGT = {{step_size = 0.05, threshold = 5.0}}
    """)
    again = parse_spec(spec.to_toml())
    assert again.build().network.content_hash == spec.build().network.content_hash
