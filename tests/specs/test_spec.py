"""A specification is read back as it was written, and what is wrong with one is said in one line."""

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from digrad import graphs
from digrad.errors import SpecError
from digrad.graphs.parse import NAMED
from digrad.links import Links, compressors
from digrad.schedules import InverseSqrt
from digrad.specs import load_spec, parse_spec, preset, preset_names
from digrad.specs.graph_table import GraphTable

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


BAD = [
    ("steps", 'steps = "3"', "`steps` must be a whole number, but got '3'."),
    ("steps", "steps = 0", "`steps` must be at least 1, but got 0."),
    ("steps", "steps = 2.5", "`steps` must be a whole number, but got 2.5."),
    ("steps", "steps = true", "`steps` must be a whole number, but got True."),
    ("steps", "", "`steps` is required, but it is missing."),
    ("steps", "stesp = 50", "`stesp` is not a known key; .* Did you mean `steps`?"),
    ("name", 'name = ""', "`name` must not be empty."),
    ("seed", "seed = -1", "`seed` must be at least 0, but got -1."),
    ("dtype", 'dtype = "float16"', "`dtype` must be one of 'float64', 'float32', but got 'float16'."),
    (
        "start",
        'start = "normla"',
        "`start` must be 'zeros', 'normal', 'model' or a list .* Did you mean `normal`?",
    ),
    (
        "start",
        "start = [1, 2, 3]",
        "`start`: `x0` must have shape (5, 2) or (2,) for quadratic, but got (3,).",
    ),
    (
        "start",
        'start = "model"',
        "`start` must be 'zeros', 'normal' or a list .*'model' is for engine = 'torch'.",
    ),
    ("engine", 'engine = "torch"', "`engine`: 'torch' trains problems of kind 'images', but the kind is"),
    ("problem", 'problem = {kind = "images"}', "`engine` must be 'torch' for a problem of kind 'images'."),
    (
        "problem",
        'engine = "torch"\nproblem = {kind = "images"}',
        "`batch_size` is required with engine = 'torch', but it is missing.",
    ),
    (
        "problem",
        'engine = "torch"\nbatch_size = 4\nproblem = {kind = "images"}',
        "`start` must be 'model' with engine = 'torch', but got 'zeros'.",
    ),
    ("tolerance", "tolerance = nan", "`tolerance` must be a finite number, but got nan."),
    (
        "batch_size",
        "batch_size = 8",
        "`batch_size` is 8, but quadratic has no samples to draw from; leave it out.",
    ),
    (
        "problem",
        f'batch_size = 400\nsampling = "epoch"\n{LOGISTIC}}}',
        "`batch_size` is 400, but agent 2 has only 359 samples, fewer than one batch per epoch; use",
    ),
    ("graph", "graph = 3", "`graph` must be a table, but got 3."),
    ("graph", "graph = {}", "`graph` needs either `kind`, the name of a generator, or `file`, and not both."),
    ("graph", 'graph = {kind = "rign", n = 5}', "`graph.kind` must be one of .* Did you mean `ring`?"),
    ("graph", 'graph = {kind = "ring"}', "`graph.n` is required, but it is missing; ring takes n."),
    ("graph", 'graph = {kind = "ring", n = 5, k = 2}', "`graph.k`: ring takes n, so remove it."),
    ("graph", 'graph = {kind = "ring", n = 0}', "`graph`: `n` of ring must be a whole number of at least 1"),
    (
        "graph",
        'graph = {kind = "ring", n = 3}',
        "`graph`: `network` has 3 agents, but `problem` has 5 losses",
    ),
    ("graph", 'graph = {file = "absent.json"}', "`graph`: graph file .*absent.json: cannot be read"),
    (
        "graph",
        'graph = {kind = "out_star", n = 5}',
        "`methods.CGT`: .* agent 1 cannot reach agent 0",
    ),
    (
        "graph",
        'graph = {kind = "example5", split = 2, random_arcs = 0.5}',
        "`graph` of random_arcs must be a Digraph, but got GraphSequence.",
    ),
    ("graph", 'graph = {kind = "example5", random_arcs = 1.5}', "`graph`: `p` of random_arcs must be a prob"),
    ("graph", 'graph = {kind = "example5", split = 0}', "`graph.split` must be at least 1, but got 0."),
    (
        "graph",
        'graph = {kind = "example5", every = 2.5}',
        "`graph.every` must be a whole number, but got 2.5",
    ),
    ("graph", 'graph = {kind = "example5", arcs_seed = 1}', "`graph.arcs_seed` is for `random_arcs`, so rem"),
    ("graph", 'graph = {kind = "example5", evry = 2}', "`graph.evry` is not a known key; .* mean `every`?"),
    (
        "links",
        'links = {compressor = "int8"}',
        "`links.compressor` must be one of 'bfloat16', 'float16', 'float32'",
    ),
    (
        "links",
        'links.compute = {distribution = "normal", mean = 1.0}',
        "`links.compute.distribution` must be one of 'exponential', 'uniform'",
    ),
    (
        "links",
        'links.awake = [1.0, "y"]',
        "`links.awake` must be a number, or a list with one number per agent, but got",
    ),
    (
        "links",
        'links.latency = "1 s"',
        "`links.latency` must be a number, or a list with one number per arc, or a table",
    ),
    (
        "links",
        'links.latency = {distribution = "uniform", low = 1.0}',
        "`links.latency`: uniform requires `high`",
    ),
    (
        "links",
        'links = {compress = "bfloat16"}',
        "`links.compress` is not a known key; .* Did you mean `compressor`?",
    ),
    (
        "mixing",
        'mixing = {R_file = "absent.csv"}',
        "`mixing.R_file`: .*absent.csv does not exist; give a file",
    ),
    (
        "problem",
        'problem = {kind = "cosh", centre = [[1.0]]}',
        "`problem.centre` is not a known key; [problem] takes center, kind, scale, sharpness. Did you mean `center`?",
    ),
    (
        "problem",
        'problem = {kind = "logistic", data = "digits", partition = {schem = "iid"}}',
        "`problem.partition.schem` is not a known key; [problem.partition] takes .* Did you mean `scheme`?",
    ),
    ("problem", 'problem = {kind = "logistc"}', "`problem.kind` must be one of .* Did you mean `logistic`?"),
    ("problem", "problem = {}", "`problem.kind` is required, but it is missing."),
    ("problem", 'problem = {kind = "logistic"}', "`problem.data` is required, but it is missing."),
    (
        "problem",
        LOGISTIC[:-1] + 's"}',
        "`problem`: No data set and no file 'digitss'.* Did you mean `digits`?",
    ),
    ("problem", LOGISTIC + ', partition = "sortd"}', "`problem.partition.scheme` .* Did you mean `sorted`?"),
    (
        "problem",
        LOGISTIC + ', partition = {scheme = "dirichlet"}}',
        "`problem`: `alpha` of partition must be",
    ),
    ("problem", LOGISTIC + ', reg_weight = "1"}', "`problem.reg_weight` must be a number, or a list"),
    ("problem", LOGISTIC + ", reg_weigt = 1}", "`problem.reg_weigt` is not a known .* `reg_weight`?"),
    (
        "problem",
        LOGISTIC + ", reg_weight = [1, 2]}",
        "`problem`: `reg_weight` of logistic must be one number",
    ),
    (
        "problem",
        'problem = {kind = "quadratic", curvature = [[1], [2, 3]], linear = [[1]]}',
        "`problem.curvature` must be one list of numbers per agent, all of one length",
    ),
    (
        "sweep",
        'sweep = {graphs = {graph = {kind = "complete", n = 5}}}',
        "`sweep.graphs.graph` is the label of [graph] itself",
    ),
    ("methods", "methods = {}", "`methods` must not be empty."),
    ("methods", "methods.CGT = 3", "`methods.CGT` must be a table, but got 3."),
    ("methods", "methods.CTG = {step_size = 1.0}", "`methods.CTG.method` must be one of .* mean `CGT`?"),
    (
        "methods",
        "methods.CGT = {step_sise = 0.05, threshold = 5.0}",
        "`methods.CGT.step_sise` is not a field of CGT, which takes method, step_size, threshold. .* `step_size`?",
    ),
    ("methods", "methods.CGT = {threshold = 5.0}", "`methods.CGT.step_size` is required by CGT"),
    ("methods", "methods.AB = {step_size = -1}", "`methods.AB`: `step_size` of AB must be positive"),
    ("methods", 'methods.AB = {step_size = "1"}', "`methods.AB.step_size` must be a number, a list"),
    (
        "methods",
        "methods.AB = {step_size = [1, 2]}",
        "`methods.AB`: `step_size` of AB must be a number, or a column of shape (5, 1), one per agent",
    ),
    (
        "methods",
        'methods.AB = {step_size = {schedule = "inverse_sqr", scale = 1}}',
        "`methods.AB.step_size.schedule` must be one of .* Did you mean `inverse_sqrt`?",
    ),
    (
        "methods",
        'methods.AB = {step_size = {schedule = "inverse", scal = 1}}',
        "`methods.AB.step_size`: `scal` is not an argument of inverse, which takes scale, offset. .* `scale`?",
    ),
    (
        "methods",
        'methods.AB = {step_size = {schedule = "inverse", scale = 1e-322}}',
        "`methods.AB`: .* is a schedule, and at k = 49: `step_size` of AB must be positive and finite, but got 0.0.",
    ),
    (
        "methods",
        'methods.AB = {step_size = {schedule = "inverse", scale = 1e300, offset = 1e-300}}',
        "`methods.AB`: .* is a schedule, and at k = 0: `step_size` of AB must be positive and finite, but got inf.",
    ),
    (
        "methods",
        'dtype = "float32"\nmethods.AB = {step_size = {schedule = "constant", value = 1e-60}}',
        "`methods.AB`: .* is a schedule, and at k = 0: `step_size` of AB must be positive and finite, but got 0.0.",
    ),
    (
        "methods",
        'methods."my DGD" = {method = "DGD", step_size = 1, mixing = "rwo"}',
        "`methods.\"my DGD\".mixing` must be one of .*, but got 'rwo'. Did you mean `row`?",
    ),
]


@pytest.mark.parametrize(("key", "line", "message"), BAD, ids=[line for _, line, _ in BAD])
def test_bad_specification_is_refused_in_one_line_that_names_file_and_key(
    key: str, line: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text_with(**{key: line}), "run.toml").build()
    pattern = re.escape(message).replace(r"\.\*", ".*")
    assert re.match(f"run.toml: {pattern}", str(caught.value))
    assert "\n" not in str(caught.value)


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
        parse_spec(text_with(steps="steps = 0", seed="seed = -1"))


@pytest.mark.parametrize("name", preset_names())
def test_written_specification_is_read_back_as_equal(name: str) -> None:
    spec = preset(name)
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
    ):  # all pairs have weight, the graph has 7 arcs
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
    problem = spec.build().problem
    first, second = (spec.options(problem, seed)["x0"] for seed in (0, 1))
    assert first.shape == (5, 2)
    assert not np.array_equal(first, second)


def test_graph_table_has_a_key_for_every_argument_of_every_generator() -> None:
    arguments = {name for make in NAMED.values() for name in inspect.signature(make).parameters}
    assert arguments <= set(GraphTable.model_fields)


@pytest.mark.parametrize(
    ("keys", "arcs"),
    [
        ('kind = "one_peer_exponential", n = 5', [5, 5, 5, 5]),
        ('kind = "example5", split = 3', [3, 2, 2, 3]),
        ('kind = "example5", every = 2', [7, 0, 7, 0]),
        ('kind = "example5", split = 3, every = 2', [3, 0, 2, 0]),
        ('kind = "example5", random_arcs = 0.5, arcs_seed = 1', None),
    ],
)
def test_graph_that_changes_with_time_reaches_the_network(keys: str, arcs: list[int] | None) -> None:
    spec = parse_spec(text_with(graph=f"graph = {{{keys}}}"))
    network = spec.build().network
    found = [network.at(k).union.n_arcs for k in range(4)]
    expected = graphs.random_arcs(graphs.example5(), 0.5, seed=1)
    assert found == (arcs or [expected.at(k).n_arcs for k in range(4)])
    assert network.period != 1
    assert parse_spec(spec.to_toml()) == spec


def test_links_reach_the_network() -> None:
    spec = parse_spec(text_with(links='links = {compressor = "bfloat16"}'))
    assert spec.build().network.links == Links(compressor=compressors.bfloat16())
    assert parse_spec(spec.to_toml()) == spec
    assert parse_spec(text_with()).build().network.links is None


def test_unknown_preset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="Did you mean `logistic-sorted`"):
        preset("logistic-sortd")


def test_paper_presets_have_the_values_of_the_paper() -> None:
    logistic = [name for name in preset_names() if not name.startswith("cifar")]
    for name in logistic:
        spec = preset(name)
        assert spec.problem.reg_weight == [5e-4, 1e-3, 2e-3, 1e-3, 1e-3], name
        assert spec.problem.reg_power == [4, 5, 6, 5, 4], name
        for label, table in spec.methods.items():
            fields = {
                field.name: getattr(table.build(), field.name) for field in dataclasses.fields(table.build())
            }
            assert fields["step_size"] == 0.05, (name, label)
            assert fields.get("threshold", 5.0) == 5.0, (name, label)


@pytest.mark.parametrize("name", ["cifar-iid", "cifar-dirichlet", "cifar-sorted"])
def test_image_presets_have_the_values_of_the_paper(name: str) -> None:
    spec = preset(name)
    assert spec.batch_size == 32
    assert spec.methods["CGT"].fields == {"step_size": 0.05, "threshold": 10.0}


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
