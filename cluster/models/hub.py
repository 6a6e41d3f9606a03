"""Asks the Hugging Face hub, with the token of the environment, and turns its errors into ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from cluster.models.cache import FULL
from cluster.models.pulling import HubFile, Snapshot
from shared.errors import ConfigError, NotFound, StorageFull, Unavailable


class HuggingFaceHub:
    """``Hub`` of ``cluster.models.pulling``."""

    def __init__(self, token: str = "", endpoint: str | None = None) -> None:
        """``token`` empty: none is sent, whatever lies in the user's home."""
        self._token: str | bool = token or False
        self._endpoint = endpoint
        self._api = HfApi(endpoint=endpoint, token=self._token)

    def tags(self, hub_id: str) -> Mapping[str, str]:
        with _translated(hub_id):
            return {tag.name: tag.target_commit for tag in self._api.list_repo_refs(hub_id).tags}

    def snapshot(self, hub_id: str, commit: str) -> Snapshot:
        with _translated(hub_id):
            info = self._api.model_info(hub_id, revision=commit, files_metadata=True)
        files = tuple(
            HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else "")
            for file in info.siblings or ()
        )
        return Snapshot(info.sha or commit, files)

    def download(self, hub_id: str, commit: str, name: str, directory: Path) -> None:
        with _translated(hub_id):
            hf_hub_download(
                hub_id,
                name,
                revision=commit,
                local_dir=directory,
                token=self._token,
                endpoint=self._endpoint,
            )


@contextmanager
def _translated(hub_id: str) -> Iterator[None]:
    try:
        yield
    except GatedRepoError as error:
        raise ConfigError(
            f"model: {hub_id} is gated; accept its terms on the hub, and put your token into HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise NotFound(f"model: {hub_id} has no such revision") from error
    except LocalEntryNotFoundError as error:  # what a download says that found no way out
        raise _away(error) from error
    except (RepositoryNotFoundError, EntryNotFoundError) as error:
        raise NotFound(
            f"model: the hub knows no {hub_id}; if it is private, put a token into HF_TOKEN"
        ) from error
    except HFValidationError as error:
        raise ConfigError(f"model: {hub_id!r} is no id of the hub: {error}") from error
    except OfflineModeIsEnabled as error:
        raise ConfigError("model: HF_HUB_OFFLINE forbids to ask the hub; set it to 0") from error
    except HfHubHTTPError as error:
        raise Unavailable(f"model: the hub answered {error}") from error
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull(
                f"model: no space left while {hub_id} was downloaded; make room, and pull it again"
            ) from error
        raise _away(error) from error
    except HTTPError as error:
        raise _away(error) from error


def _away(error: Exception) -> Unavailable:
    return Unavailable(f"model: the hub cannot be reached: {error}; pull it again, what has arrived is kept")
