"""Remotes behind plain HTTP interfaces, described declaratively."""

from penstock.targets.http.auth import Auth, ClientCredentials, StaticHeaders, bearer
from penstock.targets.http.endpoint import Body, Endpoint, File, ItemResults, PagedLookup
from penstock.targets.http.target import HttpTarget

__all__ = [
    "Auth",
    "Body",
    "ClientCredentials",
    "Endpoint",
    "File",
    "HttpTarget",
    "ItemResults",
    "PagedLookup",
    "StaticHeaders",
    "bearer",
]
