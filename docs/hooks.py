"""What MkDocs does beside rendering: pages from other files, the commands, links out of docs/."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
#: Files of the root that are pages, too, and the pages.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Any, config: Any) -> None:
    """Add pages from files of the root, where links start at the root."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        # As if it stood in docs/.
        text = re.sub(r"\]\((?!docs/|https?:|#)", "](../", text).replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Describe the commands, and turn links to files that are not on the site into their names."""
    if page.file.src_uri == "reference/commands.md":
        markdown += "\n".join(_commands())
    if "/" in page.file.src_uri:
        # Of a page in a folder, .. is still inside docs/.
        return markdown
    for name, its_page in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({its_page}")
    return re.sub(r"\[([^]]*)\]\(\.\./([^)#]+)[^)]*\)", r"\1 (`\2` in the repository)", markdown)


def _commands() -> list[str]:
    import typer

    from acil.cli import app

    lines: list[str] = []

    def describe(command: Any, name: str) -> None:
        for child, found in getattr(command, "commands", {}).items():
            describe(found, f"{name} {child}")
        if hasattr(command, "commands"):
            return
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join([name, *(p.metavar or p.name.upper() for p in arguments), "[OPTIONS]"])
        lines.extend([f"\n## {name}\n", f"```console\n$ {usage}\n```\n", _plain(command.help), ""])
        lines.extend(["| option | |", "| --- | --- |"])
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                names = ", ".join(f"`{o}`" for o in [*option.opts, *option.secondary_opts])
                lines.append(f"| {names} | {_plain(option.help).replace('|', '&#124;')} |")

    describe(typer.main.get_command(app), "acil")
    return lines


def _plain(text: str | None) -> str:
    return re.sub(r"[ \t]+", " ", (text or "").replace("\b", "")).strip()
