"""The project's own files say the same things."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_constraints_pin_every_direct_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installable = {
        name: extra for name, extra in project["optional-dependencies"].items() if name != "timm"
    }
    wanted = project["dependencies"] + [item for extra in installable.values() for item in extra]
    wanted = [item for item in wanted if not item.startswith("acil[")]
    names = {re.match(r"[\w.-]+", item).group().lower().replace("_", "-") for item in wanted}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert names <= pinned


def test_ci_runs_the_test_command_of_the_readme():
    assert "make test" in (ROOT / "README.md").read_text()
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")


def test_ruff_of_pre_commit_is_the_pinned_one():
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    (pinned,) = re.findall(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert f"rev: v{pinned}" in config


def test_no_tracked_text_names_a_path_of_one_machine():
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("tests/**/*.py"),
    ]
    pattern = re.compile(r"(?:^|[^\w./])/(?:work|home|root|farm)" + "/")
    assert len(texts) > 20
    assert [path.name for path in texts if pattern.search(path.read_text())] == []
