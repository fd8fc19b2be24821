"""Build the site's pages from files outside of docs/, and rewrite links that leave docs/ (a hook of MkDocs)."""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

OBJECTS = {
    "Tune": "tune optimize sweep StudyReport SweepReport Swept",
    "Ask": "best trials misses explain connect Rows BestRow TrialRow MissRow Explanation Database",
    "Check and compare": "check compare regress frontier serve_judge verify_verdict CheckReport CompareReport "
    "RegressReport Frontier",
    "Write and load": "new load export warm bundle NewKernel use_bundle",
    "In programs": "set_policy use_policy set_accuracy use_accuracy Policy save_choices load_choices record_misses",
    "Kernels": "Kernel TunedModule Plan SearchSpace Tunable Constraint Problem Work Within Device Mode ceil_div",
    "Building blocks": "blocks.Pointwise blocks.Rows blocks.Conv blocks.Linear blocks.Attention",
    "Reductions": "blocks.Sum blocks.Product blocks.Max blocks.Min",
    "Constraints": "constraints",
    "Values": "Accuracy Decision Ratio TrialStatus TensorMap MapLayout",
    "Errors": "TunebenchError UserError DatabaseError DatabaseMissingError",
}
"""The names that `import tunebench` has, by the headings of their page."""

AT_TOP = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files at the top of the repository, and the pages that they are on the site."""

API = "api.md"
"""The page of Python objects, made from their docstrings."""

_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are files at the top of the repository."""
    from mkdocs.structure.files import File

    for name, page in AT_TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, API, content=objects()))
    for script in sorted((ROOT / "docs" / "gallery").glob("*.py")):
        files.append(File.generated(config, f"gallery/{script.stem}.md", content=page_of(script)))
    return files


def page_of(script: Path) -> str:
    """Return a script as a page: its docstring, the first line of which is the title, then the code."""
    text = script.read_text(encoding="utf-8")
    title, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    code = text.split('"""', 2)[2].strip()
    return f"# {title.rstrip('.')}\n{rest}\n\n`python docs/gallery/{script.name}`\n\n```python\n{code}\n```\n"


def objects() -> str:
    """Return the page of Python objects as instructions to mkdocstrings."""
    lines = [
        "# Python objects",
        "Everything that `import tunebench` names. [From Python](python.md) has examples.",
    ]
    for title, names in OBJECTS.items():
        lines += [f"## {title}", *(f"::: tunebench.{name}" for name in names.split())]
    return "\n\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Rewrite a page's links: to the site's pages where there are such, else to the file in the repository."""
    source = page.file.src_uri
    homes = {there: here for here, there in AT_TOP.items()}
    folder = PurePosixPath(homes.get(source, f"docs/{source}")).parent
    depth = "../" * source.count("/")

    def rewritten(link: re.Match[str]) -> str:
        target = normpath(str(folder / link[1]))
        if target in AT_TOP:
            there = AT_TOP[target]
        elif target.startswith("docs/gallery/") and target.endswith(".py"):
            there = target.removeprefix("docs/").replace(".py", ".md")
        elif target.startswith("docs/") and (ROOT / target).is_file():
            there = target.removeprefix("docs/")
        else:
            return f"]({config.repo_url.rstrip('/')}/blob/main/{target}{link[2] or ''})"
        return f"]({depth}{there}{link[2] or ''})"

    return _LINK.sub(rewritten, markdown)
