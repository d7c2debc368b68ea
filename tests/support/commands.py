"""Run the command in this process."""

from typer.testing import CliRunner

from acil.cli import app


def acil(*arguments, code=0):
    """Run `acil` with arguments; it must end with this exit code."""
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result
