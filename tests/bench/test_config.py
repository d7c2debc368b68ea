"""Settings of a run: from flags and files, to TOML and back."""

import tomllib

import pytest

from acil.bench.config import check_resumable, make_config, read_config, to_toml
from acil.bench.methods import available, resolve
from acil.bench.plan import has_column, variants
from acil.bench.published import published
from acil.errors import InputError


def stored(config, tmp_path, resolved=None):
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config, resolved or {}))
    return make_config(read_config(file))


def test_settings_survive_the_file(tmp_path):
    config = make_config(
        {
            "dataset": "imagefolder:photos", "methods": "acil", "phases": "5,10", "seeds": "0,1",
            "order": "7", "expansion_size": "none", "gamma": "0.5", "settings.widths": "[8, 16]",
            "recipe.training.epochs": "3", "data.size": "64", "data.cache": "some/where", "jobs": "4",
            "data.subset": "none", "joint_check": "false",
        }
    )  # fmt: skip
    assert config.data == {"size": 64, "cache": "some/where", "subset": None}
    assert config.settings["expansion_size"] is None
    assert config.jobs == 4
    assert stored(config, tmp_path, {"recipe": {"name": "x"}, "skipped": 0}) == config


def test_tables_in_a_file_and_dotted_keys_mean_the_same():
    dotted = make_config({"data.size": "64", "recipe.training.epochs": 3, "settings.gamma": "none"})
    tables = {
        "data": {"size": 64},
        "recipe_changes": {"training.epochs": 3},
        "settings": {"gamma": "none"},
    }
    assert make_config(tables) == dotted


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"data": 64}, "data must be a table"),
        ({"resolved": 3}, "resolved must be a table"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"jobs": "many"}, "jobs must be a whole number"),
        ({"data.": 1}, "no setting 'data.'"),
        ({"date.size": 1}, "settings.NAME, recipe.KEY and data.NAME"),
        ({"order": "random"}, "no class order 'random'"),
    ],
)
def test_what_is_wrong_is_named(values, told):
    with pytest.raises(InputError, match=told.replace(".", r"\.")):
        make_config(values)


def test_file_is_valid_toml_with_nested_results(tmp_path):
    text = to_toml(make_config({"gamma": "none"}), {"recipe": {"training": {"epochs": 3}}, "skipped": 2})
    assert tomllib.loads(text)["resolved"] == {"recipe": {"training": {"epochs": 3}}, "skipped": 2}


def test_resuming_may_change_where_but_not_what():
    before = make_config({"data.size": 64, "data.cache": "here"})
    check_resumable(before, make_config({"data.size": 64, "data.cache": "there", "jobs": 2}), {}, {})
    with pytest.raises(InputError, match="data = "):
        check_resumable(before, make_config({"data.size": 32}), {}, {})
    with pytest.raises(InputError, match="backbone = "):
        check_resumable(make_config({"backbone": "a"}), make_config({"backbone": "b"}), {}, {})
    known = {"backbone": "a.safetensors@123", "dataset": "digits"}
    check_resumable(make_config({"backbone": "a"}), make_config({"backbone": "b"}), known, known)


def test_compare_takes_all_methods_unless_told_otherwise():
    assert make_config({"suite": "compare"}).methods == available()
    assert make_config({"suite": "compare", "methods": "acil"}).methods == ("acil",)
    assert make_config({}).methods == ("acil",)


def test_table1_is_the_papers_table_unless_told_otherwise():
    table = make_config({"suite": "table1"})
    assert (table.dataset, table.recipe, table.order) == ("cifar100", "paper", "seed1993")
    assert (table.phases, table.seeds) == ((5, 10, 25, 50), (0,))
    rows = {method for method in table.methods if published("cifar100", method, 5) is not None}
    assert rows == set(table.methods)
    # Every row of the paper for K = 50 and no other is there.
    at_fifty = {method for method in rows if published("cifar100", method, 50) is not None}
    assert {method for method in rows if has_column("table1", method, 50)} == at_fifty
    assert all(callable(resolve(method)) for method in table.methods)
    assert make_config({"suite": "table1", "phases": "5", "order": "podnet1"}).phases == (5,)


def test_memory_suite_varies_what_a_method_keeps():
    rules = [v["memory_rule"] for v in variants("memory", {}, {"memory_rule": "20 per class"})]
    assert rules == ["5 per class", "10 per class", "20 per class", "50 per class"]
    given = {"budgets": [1, 2], "widths": [8], "gamma": 1.0}
    assert variants("memory", given, {"memory_rule": "20 per class"}) == [
        {"gamma": 1.0, "memory_rule": "1 per class"},
        {"gamma": 1.0, "memory_rule": "2 per class"},
    ]
    strict = variants("memory", {"budgets": 7}, {"memory_rule": "strict"})
    assert strict == [{"memory_rule": "7 per class, strict"}]
    assert variants("memory", given, {}) == [{"gamma": 1.0, "expansion_size": 8}]
    # Nothing that a suite varies makes a difference to nearest class means.
    for suite in ("memory", "width", "ablation"):
        assert variants(suite, given, {}, expands=False) == [{"gamma": 1.0}]
        assert len(variants(suite, {}, {})) > 1
    as_text = variants("memory", {"budgets": "5, 10"}, {"memory_rule": "20 per class"})
    assert [variant["memory_rule"] for variant in as_text] == ["5 per class", "10 per class"]
    for wrong in (["few"], "5,few", "5,,10", "-5"):
        with pytest.raises(InputError, match="budgets"):
            variants("memory", {"budgets": wrong}, {"memory_rule": "20 per class"})
