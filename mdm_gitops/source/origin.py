"""Where commits of definitions come from, as the settings say: a remote, or a revision of the folder's
own repository. A plain folder is no origin: it is read as it stands.

An origin knows which commit is the newest one, whether it may be taken at all, and its files. What
is then done with them is the operator's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mdm_gitops.errors import SourceError
from mdm_gitops.settings import Settings
from mdm_gitops.source.credentials import Credentials
from mdm_gitops.source.git import GitTree, ask_git, resolve_revision
from mdm_gitops.source.remote import Remote, fetch
from mdm_gitops.source.verify import NOBODY_IN_PARTICULAR, Trust, verify_commit

MIRROR: Final = Path(".mdm", "source.git")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """*repo* is the mirror of *remote*, or without one the repository that has *revision*."""

    repo: Path
    remote: Remote | None = None
    revision: str = ""
    subpath: str = ""
    trust: Trust = NOBODY_IN_PARTICULAR
    allow_rewind: bool = False

    def newest(self) -> str:
        """Return the full hash of the commit that is asked for now, fetched if it is elsewhere.

        Raises:
            SourceError: the remote cannot be reached.
            NotFound: there is no such branch, tag or commit.
        """
        if self.remote is not None:
            return fetch(self.remote, into=self.repo)
        return resolve_revision(self.repo, self.revision)

    def signer_of(self, commit: str) -> str:
        """Return who signed *commit*, "" where nobody has to.

        Raises:
            SourceError: it is not signed as it must be (``SOURCE_NOT_VERIFIED``).
        """
        if not self.trust.is_required:
            return ""
        return verify_commit(self.repo, commit, trust=self.trust)

    def refuse_rewind(self, commit: str, *, since: str | None) -> None:
        """Raise SourceError (``SOURCE_REWOUND``) if *commit* does not build on *since*."""
        if since is None or since == commit or self.allow_rewind:
            return
        done = ask_git(self.repo, "merge-base", "--is-ancestor", since, commit)
        if done.returncode != 0:
            raise SourceError(
                f"commit {commit[:12]} does not build on {since[:12]}, which was taken before",
                hint="somebody rewrote the branch: push what is missing, or set"
                " Mdm__Source__AllowRewind=true until it is taken",
                code="SOURCE_REWOUND",
            )

    def tree(self, commit: str) -> GitTree:
        return GitTree(self.repo, commit, self.subpath)

    def __str__(self) -> str:
        where = str(self.remote) if self.remote else f"{self.repo} ({self.revision})"
        return f"{where}, {self.subpath}" if self.subpath else where


def origin_of(folder: Path, settings: Settings) -> Origin | None:
    """Return the origin that the settings of *folder* name; None where it is the folder itself."""
    source = settings.Source
    remote = remote_of(settings)
    if remote is None and not source.Revision:
        return None
    return Origin(
        repo=folder if remote is None else folder / MIRROR,
        remote=remote,
        revision=source.Revision,
        subpath=source.SubPath,
        trust=Trust(allowed_signers=source.AllowedSigners, allowed_keys=source.AllowedKeys),
        allow_rewind=source.AllowRewind,
    )


def remote_of(settings: Settings) -> Remote | None:
    """Return the remote that the settings name, with its credentials."""
    source = settings.Source
    if source.Url is None:
        return None
    return Remote(
        url=source.Url,
        branch=source.Branch,
        tag=source.Tag,
        revision=source.Revision,
        subpath=source.SubPath,
        credentials=Credentials(
            username=source.Username,
            password=source.Password.get_secret_value() if source.Password else "",
            password_file=source.PasswordFile,
            ssh_key=source.SshKey.get_secret_value() if source.SshKey else "",
            ssh_key_file=source.SshKeyFile,
            known_hosts=source.KnownHosts,
            known_hosts_file=source.KnownHostsFile,
            ca_file=source.CaFile,
        ),
        timeout_s=source.TimeoutSeconds,
        max_bytes=source.MaxBytes,
    )
