"""The settings of the paper are specifications with the paper's values."""

import dataclasses

import pytest

from digrad.paper.presets import preset, preset_names
from digrad.specs import parse_spec


@pytest.mark.parametrize("name", preset_names())
def test_written_specification_is_read_back_as_equal(name: str) -> None:
    spec = preset(name)
    again = parse_spec(spec.to_toml(), "again")
    assert again == spec
    assert again.to_toml() == spec.to_toml()


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
