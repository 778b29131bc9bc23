"""Hooks that adapt the pages of docs, which are written for GitHub, to mkdocs."""

import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError

# A link of Markdown without a scheme: its path and its anchor.
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"`[^`]*`")


def on_page_markdown(markdown, page, config, files):
    """Leads links out of docs to the repository, and removes the \\ before | in code of tables."""
    folder = posixpath.dirname(page.file.src_uri)

    def repository_link(match):
        target = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        if target.startswith("docs/"):
            return match[0]
        if not Path(target).exists():
            raise PluginError(f"{page.file.src_uri}: link to {match[1]}: no such file")
        kind = "tree" if Path(target).is_dir() else "blob"
        return f"]({config.repo_url}/{kind}/main/{target}{match[2] or ''})"

    lines = []
    for line in markdown.splitlines():
        if line.startswith("|"):
            line = CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        lines.append(line)
    return LINK.sub(repository_link, "\n".join(lines))
