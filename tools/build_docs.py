"""Makes the site of the documentation, build/docs/index.html, and checks its links.

    python tools/build_docs.py

Pages, notebooks and the changelog lie in different folders of the repository, where links between them work on a code host. For
the site they are copied to build/docs-source, with docs/ as its root and their links changed alike. Notebooks are not run here: the
tests keep those that they have run in build/notebooks, and `make docs` runs the tests of those that have changed since.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
# Pages are read by people who learn, often in a second language: a cell is a phrase, and a sentence ends in sight of its beginning.
_MOST_CELL_WORDS = 30
_MOST_SENTENCE_WORDS = 40
# A link of Markdown, or its definition at a line's beginning; in notebooks the same text is within JSON.
_LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s#\"]+)", re.MULTILINE)


def sources(root: Path) -> dict[PurePosixPath, PurePosixPath]:
    """``{path in the repository: path in the site's source}`` of everything that the site is made of."""
    patterns = ("docs/**/*", "notebooks/*.ipynb", "examples/*.py", "CHANGELOG.md", "CONTRIBUTING.md", "data/README.md")
    found = (path.relative_to(root) for pattern in patterns for path in sorted(root.glob(pattern)) if path.is_file())
    return {PurePosixPath(path): _place(PurePosixPath(path)) for path in found if not any(map(_is_cache, path.parts))}


def _is_cache(part: str) -> bool:
    return part == "__pycache__" or part.startswith(".")


def _place(path: PurePosixPath) -> PurePosixPath:
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    if path.name == "README.md":
        return PurePosixPath("index.md") if len(path.parts) == 1 else PurePosixPath(*path.parts[:-1]).with_suffix(".md")
    return PurePosixPath(path.as_posix().lower())


def moved(text: str, page: PurePosixPath) -> str:
    """A page's text with its links changed to where their targets are in the site's source.

    Args:
        text: Markdown, or a notebook as JSON.
        page: The page's path in the repository.
    """

    def change(match: re.Match[str]) -> str:
        opening, target = match.groups()
        if urlsplit(target).scheme:
            return match.group()
        path = PurePosixPath(os.path.normpath(page.parent / target))
        return opening + os.path.relpath(_place(path), _place(page).parent)

    return _LINK.sub(change, text)


def with_alternative_texts(notebook: str) -> str:
    """A notebook, as JSON, whose cells tell the site what their figures show: the figures' own words, or what they are as text."""
    found = json.loads(notebook)
    for cell in found["cells"]:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                shown = "".join(output["data"].get("text/plain", ())).strip("<>") or "A picture"
                alt = output.get("metadata", {}).get("image/png", {}).get("alt", shown)
                cell["metadata"].setdefault("mystnb", {})["image"] = {"alt": alt}
    return json.dumps(found, indent=1, ensure_ascii=False)


def stage(root: Path, out: Path) -> None:
    """Writes the site's source; files that stay the same are not touched, so that only pages that changed are made anew.

    Args:
        root: The repository.
        out: Folder to write to; what is in it and belongs to no page is removed.
    """
    wanted = set()
    for path, place in sources(root).items():
        origin, target = root / path, out / place
        wanted.add(target)
        if path.suffix == ".ipynb":
            content = with_alternative_texts(moved((root / "build" / path).read_text(), path)).encode()
        else:
            content = moved(origin.read_text(), path).encode() if path.suffix == ".md" else origin.read_bytes()
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for left in [path for path in out.rglob("*") if path.is_file() and path not in wanted]:
        left.unlink()


class _Page(HTMLParser):
    """What a page of the site links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.mute: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes links and ids."""
        values = {name: value for name, value in attrs if value}
        if tag == "img" and values.get("alt", values.get("src")) == values.get("src"):
            self.mute.append(values.get("src", ""))
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag != "link" or values.get("rel") == "stylesheet":
            self.targets += [values[name] for name in ("href", "src") if name in values]


def broken_links(site: Path) -> list[str]:
    """Links of a site that lead nowhere: to no file, to no place of a page, or that are no address. Other hosts are not asked.

    Args:
        site: Folder of HTML pages.

    Returns:
        A line for each, with its page.
    """
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    broken = defaultdict(set)
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https"):
                good = re.fullmatch(r"[\w-]+(\.[\w-]+)+(:\d+)?", parts.netloc) is not None
            elif parts.scheme:
                good = parts.scheme in ("mailto", "data")
            else:
                goal = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
                good = goal.is_file() and (not parts.fragment or goal not in pages or unquote(parts.fragment) in pages[goal].anchors)
            if not good:
                broken[path].add(target)
    return [f"{path.relative_to(site)}: {target}" for path, targets in broken.items() for target in sorted(targets)]


def mute_pictures(site: Path) -> list[str]:
    """Pictures of a site that have no alternative text; a line for each, with its page."""
    return [f"{path.relative_to(site)}: {source}" for path in sorted(site.rglob("*.html")) for source in _Page(path.read_text()).mute]


def long_texts(root: Path) -> list[str]:
    """Cells of tables and sentences of users' pages that are too long; a line for each, with its page and number of words."""
    pages = [root / "README.md", *(page for page in sorted((root / "docs").rglob("*.md")) if "development" not in page.parts)]
    found = []
    for page in pages:
        cells, paragraphs = _texts(page.read_text())
        sentences = (part for text in paragraphs for part in re.split(r"(?<=[.!?])[)\"*]*\s+(?=[A-Z*`\[\"(\d])", text))
        for texts, most in ((cells, _MOST_CELL_WORDS), (sentences, _MOST_SENTENCE_WORDS)):
            lengths = ((len(text.split()), text) for text in texts)
            found += [f"{page.relative_to(root)}: {length} words: {text[:80]}" for length, text in lengths if length > most]
    return found


def _texts(page: str) -> tuple[list[str], list[str]]:
    """The cells of a page's tables and its paragraphs, each item of a list one; code and the addresses of links are left out."""
    page = re.sub(r"^(```|~~~|:::).*?^\1`*\s*$", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", page)
    cells: list[str] = []
    paragraphs = [""]
    for line in page.splitlines():
        is_row = line.lstrip().startswith("|")
        if is_row:
            cells += re.split(r"(?<!\\)\|", line.strip().strip("|"))
        if is_row or not line.strip() or re.match(r"\s*([*-]|\d+\.) |#", line):
            paragraphs.append("")
        if not is_row:
            paragraphs[-1] += f" {line.strip()}"
    return cells, paragraphs


def main() -> None:
    """Builds the site; exits with 1 where a page has a warning, a link leads nowhere or a picture has no alternative text."""
    source, site = ROOT / "build/docs-source", ROOT / "build/docs"
    if long := long_texts(ROOT):
        sys.exit("\n".join(["texts that are too long: a cell is a phrase, and what needs sentences is a section:", *long]))
    if missing := [path.name for path in (ROOT / "notebooks").glob("*.ipynb") if not (ROOT / "build/notebooks" / path.name).exists()]:
        sys.exit(f"notebooks that have not been run: {', '.join(sorted(missing))}; `make docs` runs them")
    stage(ROOT, source)
    if (site / "docs").is_dir():  # of a build before this one, whose pages lay deeper
        shutil.rmtree(site)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto", "-b", "html"]
    if subprocess.run([*command, str(source), str(site)], cwd=ROOT).returncode:
        sys.exit(1)
    if broken := broken_links(site):
        sys.exit("\n".join(["links that lead nowhere:", *broken]))
    if mute := mute_pictures(site):
        sys.exit("\n".join(["pictures without an alternative text:", *mute]))
    print((site / "index.html").relative_to(ROOT))


if __name__ == "__main__":
    main()
