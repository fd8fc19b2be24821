"""Access to git: the repository of a folder, its revisions, and their files in worktrees for as long as it takes."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tunebench.studies.tuning.spaces import declares_kernel
from tunebench.tuner.command import GitError, git
from tunebench.tuner.errors import UserError
from tunebench.tuner.scratch import scratch
from tunebench.tuner.users_code import MODEL_FILE

_SHORT = 10
"""Digits of a commit that people are shown."""


class Side(enum.StrEnum):
    """Which of the two revisions."""

    BASE = "BASE"
    HEAD = "HEAD"


@dataclass(frozen=True)
class Revision:
    """One state of a repository's files.

    Attributes:
        name: as it was asked for.
        commit: its commit; of the working tree the commit it began from.
        repository: the root of its repository's working tree.
        root: where its files are.
        changed: of the working tree: how many files differ from the commit.
    """

    name: str
    commit: str
    repository: Path
    root: Path
    changed: int = 0

    def __str__(self) -> str:
        files = f" and {self.changed} changed file{'' if self.changed == 1 else 's'}" if self.changed else ""
        return f"{self.name} ({self.commit[:_SHORT]}{files})"


def repository_of(folder: Path) -> Path:
    """The root of the repository that a folder is in.

    Raises:
        UserError: it is in none, or git is not installed.
    """
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel")).resolve()
    except GitError as error:
        raise UserError(f"{folder.resolve()} is not in a git repository: {error}") from error


@contextmanager
def revisions(repository: Path, base: str, head: str | None) -> Iterator[Mapping[Side, Revision]]:
    """Two revisions with their files, in worktrees of the repository that are gone when the block ends.

    Args:
        head: None for the working tree, as it is.

    Raises:
        UserError: there is no such revision, or it cannot be checked out.
    """
    # Both are looked up before anything is checked out.
    commits = [_commit(repository, name) for name in (base, head or "HEAD")]
    with scratch() as folder, contextlib.ExitStack() as worktrees:
        first = worktrees.enter_context(_worktree(repository, base, commits[0], folder / "base"))
        if head is None:
            changed = len(_git(repository, "status", "--porcelain", "--untracked-files=all").splitlines())
            second = Revision("the working tree", commits[1], repository, repository, changed)
        else:
            second = worktrees.enter_context(_worktree(repository, head, commits[1], folder / "head"))
        yield {Side.BASE: first, Side.HEAD: second}


def kernels_in(revision: Revision) -> set[PurePosixPath]:
    """The kernel folders, and kernels in one file, among what git keeps or would: by path below the root."""
    listed = _git(revision.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py")
    found = set()
    for name in filter(None, listed.split("\0")):
        file = revision.root / name
        if declares_kernel(file):
            place = PurePosixPath(name)
            found.add(place.parent if place.name == MODEL_FILE else place)
    return found


def _commit(repository: Path, name: str) -> str:
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except GitError as error:
        legal = "give a commit, a branch or a tag that this clone has (git fetch brings more)"
        raise UserError(f"unknown revision '{name}' of {repository}: {legal}") from error


@contextmanager
def _worktree(repository: Path, name: str, commit: str, folder: Path) -> Iterator[Revision]:
    """The files of a commit in a folder of the repository's own name, which is a kernel's where its root is one."""
    root = folder / repository.name
    without_hooks = ("-c", "core.hooksPath=/dev/null")
    try:
        try:
            _git(repository, *without_hooks, "worktree", "add", "--quiet", "--detach", str(root), commit)
        except GitError as error:
            raise UserError(f"'{name}' of {repository} cannot be checked out: {error}") from error
        yield Revision(name, commit, repository, root)
    finally:
        with contextlib.suppress(GitError):  # it may never have been added
            _git(repository, "worktree", "remove", "--force", str(root))


def _git(folder: Path, *arguments: str) -> str:
    """See `git`.

    Raises:
        UserError: git is not installed.
    """
    try:
        return git(folder, *arguments)
    except FileNotFoundError as error:
        raise UserError("git is not installed: regress compares two revisions of a git repository") from error
