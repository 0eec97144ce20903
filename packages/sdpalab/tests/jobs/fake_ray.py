"""A cluster in this process, with what the executor uses of Ray; ``get``, which unpickles, is not there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

Store = dict[tuple[bytes, bytes], bytes]


class FakeCluster:
    """Actors that run in this process when they are called; one that raises has died.

    Attributes
    ----------
    store : dict
        The key-value store.
    started : int
        Actors so far.
    """

    def __init__(self, cpus: int = 2) -> None:
        self.store: Store = {}
        self.started, self._cpus = 0, cpus
        self.instead: Callable[[bytes], None] | None = None
        """Action of a hostile actor in place of a job, given the key of its answer."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ray, experimental, kv = (
            ModuleType(name) for name in ("ray", "ray.experimental", "ray.experimental.internal_kv")
        )
        ray.init = lambda address=None, **options: None  # type: ignore[attr-defined]
        ray.shutdown = lambda: None  # type: ignore[attr-defined]
        ray.cluster_resources = lambda: {"CPU": float(self._cpus)}  # type: ignore[attr-defined]
        ray.remote = lambda **options: self._class  # type: ignore[attr-defined]
        ray.kill = lambda actor: None  # type: ignore[attr-defined]
        ray.wait = self._wait  # type: ignore[attr-defined]
        kv._internal_kv_put = self._put  # type: ignore[attr-defined]
        kv._internal_kv_get = lambda key, namespace: self.store.get((namespace, key))  # type: ignore[attr-defined]
        kv._internal_kv_del = lambda key, namespace: self.store.pop((namespace, key), None)  # type: ignore[attr-defined]
        for module in (ray, experimental, kv):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def _put(self, key: bytes, value: bytes, namespace: bytes) -> None:
        self.store[namespace, key] = value

    def _wait(
        self, waiting: list[Any], *, num_returns: int, timeout: float, fetch_local: bool
    ) -> tuple[list[Any], Any]:
        assert not fetch_local, "an object of a worker comes to the driver"
        return waiting[:num_returns], waiting[num_returns:]

    def _class(self, actor: type) -> Any:
        cluster = self

        class Handle:
            def __init__(self) -> None:
                self._actor = actor()
                cluster.started += 1

            @classmethod
            def remote(cls) -> Handle:
                return cls()

            def __getattr__(self, name: str) -> Any:
                return _Method(cluster, getattr(self._actor, name), name)

        return Handle


class _Method:
    def __init__(self, cluster: FakeCluster, function: Callable[..., Any], name: str) -> None:
        self._cluster, self._function, self._name = cluster, function, name

    def remote(self, *arguments: Any) -> object:
        """Run it; what it returns or raises stays in the cluster."""
        try:
            if self._name == "run" and self._cluster.instead is not None:
                self._cluster.instead(arguments[0])
            else:
                self._function(*arguments)
        except Exception:
            pass
        return object()


def answers(value: bytes, cluster: FakeCluster) -> Callable[[bytes], None]:
    """An actor that leaves ``value`` in place of the answer."""

    def instead(key: bytes) -> None:
        cluster.store[b"sdpalab", key] = value

    return instead
