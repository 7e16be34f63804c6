"""Which storage the settings name: a folder, or an object store by `obstore`."""

from __future__ import annotations

from penstock.blobs.storage import Storage
from penstock.blobs.store import FileStore
from penstock.settings import Settings

__all__ = ["open_storage"]


def open_storage(settings: Settings) -> Storage:
    """The storage of these settings; nothing is connected yet. What is wrong with it is told when it is used."""
    if settings.storage_fault is None and settings.is_storage_remote:
        from penstock.blobs.objects import ObjectStorage

        assert settings.storage_url is not None
        return ObjectStorage(settings.storage_url)
    return FileStore(settings.storage_folder, fault=settings.storage_fault)
