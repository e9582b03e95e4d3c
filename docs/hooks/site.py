"""Pages of the documentation that are generated, and links from the documentation to the rest of the repository."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from penstock.bench import cli
from penstock.pipelines.errors import ERROR_CODES

ROOT = Path(__file__).resolve().parents[2]
# Pages with text from elsewhere in the repository.
MOUNTED = {
    "bench/results/README.md": "performance/results.md",
    "docker/README.md": "clusters.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# A folder's README is only a pointer; the site has the full page.
SHOWN_AS = {
    "README.md": "index.md",
    "loaders/README.md": "design/index.md",
    "pipelines/README.md": "design/index.md",
    "bench/README.md": "performance/index.md",
}
REFERENCES = {"loaders": "reference/loaders.md", "pipelines": "reference/pipelines.md"}
_OPTIONS = ("Data", "Source", "Reading", "Field", "Backend")  # those of which the exported ones consist
EXTRA = {
    "loaders": [f"penstock.loaders.front.loader_options.{name}Options" for name in _OPTIONS],
    "pipelines": [f"penstock.pipelines.presets.{name}_train" for name in ("segmentation", "detection")],
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_CODE_ROW = re.compile(r"^\| `(E-[A-Z]+)` \|(.*)\|$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {there: (ROOT / here).read_text("utf-8") for here, there in MOUNTED.items() if (ROOT / here).exists()}
    pages |= {page: reference_text(package) for package, page in REFERENCES.items()}
    pages["reference/commands.md"] = commands_text()
    pages |= dict(example_pages())
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to other parts of the repository, and complete the table of error codes."""
    if page.file.src_uri == "reference/errors.md":
        text = complete_codes(text)
    here = {there: source for source, there in MOUNTED.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return _LINK.sub(lambda link: _rewritten(link, here, page.file.src_uri), text)


def _rewritten(link: re.Match[str], here: str, uri: str) -> str:
    is_image, label, target, anchor = link.groups()
    if not target or "://" in target:
        return link[0]
    path = os.path.normpath(os.path.join(os.path.dirname(here), target))
    shown = {**MOUNTED, **SHOWN_AS}.get(path)
    if shown is None and path.startswith("docs/"):
        shown = path.removeprefix("docs/")
        shown += ".md" if re.fullmatch(r"examples/\w+\.(py|ipynb)", shown) else ""
    if shown is None:  # a file of the repository that is no page
        return label if is_image or not (ROOT / path).exists() else f"{label} (`{path}`)"
    kept = "" if path in SHOWN_AS else anchor or ""
    return f"{is_image}[{label}]({os.path.relpath(shown, os.path.dirname(uri))}{kept})"


def public_names(package: str) -> list[str]:
    """Return where each name that the package exports is defined: functions, then classes, then constants."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text("utf-8"))
    exported = {a.name: f"{n.module}.{a.name}" for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    names = [*exported.values(), *EXTRA.get(package, ())]
    return sorted(names, key=lambda path: _sort_key(path.rpartition(".")[2]))


def _sort_key(name: str) -> tuple[bool, bool, str]:
    return name.isupper(), name[0].isupper(), name.lower()


def reference_text(package: str) -> str:
    """Return a page with every public name of a package."""
    blocks = [f"::: {name}\n" for name in public_names(package)]
    return f"# penstock.{package}\n\nEverything that `penstock.{package}` exports.\n\n" + "\n".join(blocks)


def complete_codes(text: str) -> str:
    """Add the exit code and the usual fix to each row of the table. Raises PluginError unless all codes are there."""
    listed = {found[1] for found in _CODE_ROW.finditer(text)}
    if listed != set(ERROR_CODES):
        raise PluginError(f"docs/reference/errors.md and pipelines/errors.py differ: {listed ^ set(ERROR_CODES)}")

    def row(found: re.Match[str]) -> str:
        code = ERROR_CODES[found[1]]
        name = f"<span id='{found[1].lower()}'>`{found[1]}`</span>"
        return f"| {name} |{found[2]}| {code.exit_code} | {_plain(code.fix)} |"

    head = "| code | what happened |\n|---|---|\n"
    wide = "| code | what happened | exit code | the usual fix |\n|---|---|--:|---|\n"
    return _CODE_ROW.sub(row, text).replace(head, wide)


def commands_text() -> str:
    """Return a page with every command and its options, as the commands themselves describe them."""
    cli._register()
    lines = ["# Commands", "", "Each command explains itself with `--help`. This page holds the same texts.", ""]
    for name, command in _commands(typer.main.get_command(cli.app), "penstock"):
        lines += [f"## {name}", "", _plain(command.help or ""), ""]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(p.metavar or p.name.upper() for p in arguments)
        lines += ["```text", f"{name} [OPTIONS] {usage}".rstrip(), "```", ""]
        rows = [_option_row(p) for p in command.params if p not in arguments and not getattr(p, "hidden", False)]
        lines += ["| option | what it does | default |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part in sorted(command.commands):
        yield from _commands(command.commands[part], f"{name} {part}")


def _option_row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = option.show_default if isinstance(option.show_default, str) else option.default
    shown = "" if default is None or default is False or callable(default) or "Sentinel" in repr(default) else default
    return f"| {names} | {_plain(option.help or '')} | {_plain(str(shown))} |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[").replace("__", "\\_\\_")


def example_pages() -> Iterator[tuple[str, str]]:
    """Return a page for each script of docs/examples: its docstring, then its code."""
    for path in sorted((ROOT / "docs" / "examples").glob("*.py")):
        code = path.read_text("utf-8")
        title = (ast.get_docstring(ast.parse(code)) or path.stem).partition("\n")[0]
        text = f"# {path.stem.replace('_', ' ').capitalize()}\n\n{title}\n\n```python\n{code}```\n"
        yield f"examples/{path.name}.md", text
