"""feedrate.DataLoader where torch cannot be imported: the same loader with NumPy collation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers import START_METHODS, procs

pytestmark = pytest.mark.ours

# A finder that refuses torch in this process and, through the environment, in every worker.
_BLOCK = """
import importlib.abc, os, sys
class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith(("torch.", "torchdata")):
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)
sys.meta_path.insert(0, NoTorch())
"""


def without_torch(body: str, tmp_path: Any, **kwargs: Any) -> str:
    """Runs a script with torch blocked, in workers too (sitecustomize); its stdout, after a clean exit."""
    import textwrap

    (tmp_path / "sitecustomize.py").write_text(_BLOCK)
    (tmp_path / "plain_data.py").write_text(textwrap.dedent(_DATA))
    env = procs.environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    done = procs.script(body, env=env, **kwargs)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return str(done.stdout)


_DATA = """
    import collections, random
    import numpy as np
    Point = collections.namedtuple("Point", "x y")
    class Squares:
        def __init__(self, n): self.n = n
        def __len__(self): return self.n
        def __getitem__(self, i):
            return {"x": np.full((3, 4), i, dtype="float32"), "i": i, "f": i / 2, "b": i % 2 == 0, "s": f"n{i}",
                    "raw": bytes([i]), "p": Point(i, np.int16(i)), "l": [i, (i, "t")], "np": np.float32(i)}
    class Draws:
        def __len__(self): return 24
        def __getitem__(self, i): return i, random.random(), float(np.random.rand())
    class Stream:
        def __init__(self, n): self.n = n
        def __iter__(self): return iter(range(self.n))
    class Bad:
        def __len__(self): return 6
        def __getitem__(self, i):
            if i == 3: raise KeyError("lost")
            return i
"""


def test_torch_is_really_blocked(tmp_path: Any) -> None:
    out = without_torch(
        """
        try:
            import torch
        except ModuleNotFoundError as e:
            print("blocked", "(blocked)" in str(e))
        """,
        tmp_path,
    )
    assert out.split() == ["blocked", "True"]


@pytest.mark.parametrize("workers", ["0", "1", "2"])
@pytest.mark.parametrize("pool", ["auto", "process", "thread"])
def test_structures_and_dtypes(workers: str, pool: str, tmp_path: Any) -> None:
    out = without_torch(
        f"""
        import sys
        import numpy as np
        import feedrate
        from plain_data import Squares, Point
        if __name__ == "__main__":
            loader = feedrate.DataLoader(Squares(10), batch_size=4, num_workers={workers}, workers={pool!r})
            assert len(loader) == 3
            batches = list(loader)
            for k, b in enumerate(batches):
                n = min(4, 10 - 4 * k)
                idx = list(range(4 * k, 4 * k + n))
                assert type(b["x"]) is np.ndarray and b["x"].dtype == np.float32 and b["x"].shape == (n, 3, 4)
                assert (b["x"] == np.array(idx)[:, None, None]).all()
                assert b["x"].flags.writeable and b["x"].flags.c_contiguous
                b["x"][:] = 0
                assert b["i"].dtype == np.int64 and b["i"].tolist() == idx
                assert b["f"].dtype == np.float64 and b["f"].tolist() == [i / 2 for i in idx]
                assert b["b"].dtype == np.bool_ and b["b"].tolist() == [i % 2 == 0 for i in idx]
                assert b["s"] == [f"n{{i}}" for i in idx]
                assert b["raw"] == [bytes([i]) for i in idx]
                assert type(b["p"]) is Point and b["p"].x.tolist() == idx and b["p"].y.dtype == np.int16
                assert type(b["l"]) is list and b["l"][0].tolist() == idx
                assert type(b["l"][1]) is list and b["l"][1][0].tolist() == idx
                assert list(b["l"][1][1]) == ["t"] * n
                assert b["np"].dtype == np.float32
            assert "torch" not in sys.modules
            print("fine", len(batches))
        """,
        tmp_path,
    )
    assert out.split() == ["fine", "3"]


@pytest.mark.parametrize("method", START_METHODS)
def test_start_methods_shuffle_and_seeds(method: str, tmp_path: Any) -> None:
    body = f"""
        import numpy as np
        import feedrate
        from plain_data import Draws
        if __name__ == "__main__":
            runs = []
            for generator in (7, 7, 8, np.random.default_rng(7)):
                loader = feedrate.DataLoader(Draws(), batch_size=4, shuffle=True, num_workers=2, workers="process",
                                             generator=generator, multiprocessing_context={method!r})
                runs.append([[x.tolist() for x in b] for b in loader])
                order = [i for b in runs[-1] for i in b[0]]
                assert sorted(order) == list(range(24)) and order != list(range(24))
                draws = [v for b in runs[-1] for v in b[1] + b[2]]
                assert len(set(draws)) == len(draws)
            assert runs[0] == runs[1] and runs[0] != runs[2]
            print("fine", runs[0][0][0])
        """
    first, second = without_torch(body, tmp_path), without_torch(body, tmp_path)
    assert first.startswith("fine")
    assert first == second


def test_epochs_of_one_loader_differ_and_repeat_with_the_seed(tmp_path: Any) -> None:
    out = without_torch(
        """
        import feedrate
        if __name__ == "__main__":
            def epochs():
                loader = feedrate.DataLoader(range(30), batch_size=10, shuffle=True, generator=3)
                return [[i for b in loader for i in b.tolist()] for _ in range(3)]
            a, b = epochs(), epochs()
            assert a == b and a[0] != a[1] != a[2]
            print("fine")
        """,
        tmp_path,
    )
    assert out.strip() == "fine"


def test_iterables_errors_and_arguments(tmp_path: Any) -> None:
    out = without_torch(
        """
        import numpy as np
        import feedrate
        from plain_data import Bad, Stream
        class Mine(feedrate.IterableDataset):
            def __iter__(self):
                info = feedrate.get_worker_info()
                first, step = (info.id, info.num_workers) if info else (0, 1)
                return iter(range(first, 10, step))
        if __name__ == "__main__":
            assert [b.tolist() for b in feedrate.DataLoader(Stream(5), batch_size=2)] == [[0, 1], [2, 3], [4]]
            got = sorted(i for b in feedrate.DataLoader(Mine(), batch_size=2, num_workers=2) for i in b.tolist())
            assert got == list(range(10))
            assert list(feedrate.DataLoader(range(4), batch_size=None)) == [0, 1, 2, 3]
            assert [b.tolist() for b in feedrate.DataLoader(range(5), batch_size=2, drop_last=True)] == [[0, 1], [2, 3]]
            assert [b for b in feedrate.DataLoader(range(4), batch_size=2, collate_fn=tuple)] == [(0, 1), (2, 3)]
            for workers in (0, 1):
                it = iter(feedrate.DataLoader(Bad(), num_workers=workers))
                for _ in range(3):
                    next(it)
                try:
                    next(it)
                except KeyError as e:
                    assert "lost" in str(e)
                else:
                    raise AssertionError("no error")
                assert [b.tolist() for b in it] == [[4], [5]]
            for bad in (dict(num_workers=-1), dict(batch_size=0), dict(shuffle=True, sampler=[0]), dict(workers="x"),
                        dict(seeding="x"), dict(prefetch_factor=2), dict(items_in_flight=0)):
                try:
                    feedrate.DataLoader(range(3), **bad)
                except ValueError:
                    pass
                else:
                    raise AssertionError(bad)
            print("fine")
        """,
        tmp_path,
    )
    assert out.strip() == "fine"


def test_a_killed_worker_is_replaced(tmp_path: Any) -> None:
    out = without_torch(
        """
        import os, signal
        import feedrate
        from plain_data import Squares
        if __name__ == "__main__":
            it = iter(feedrate.DataLoader(Squares(60), batch_size=2, num_workers=2, workers="process"))
            seen = []
            for k, b in enumerate(it):
                seen += b["i"].tolist()
                assert (b["x"][:, 0, 0] == b["i"]).all()
                if k == 4:
                    os.kill(it._workers[0].pid, signal.SIGKILL)
            assert seen == list(range(60))
            print("fine")
        """,
        tmp_path,
    )
    assert out.strip() == "fine"


def test_with_torch_installed_arrays_stay_arrays() -> None:
    """Installing torch changes nothing about this loader; tensors from the user's code are collated as torch would."""
    import torch

    import feedrate

    for workers in (0, 2):
        loader = feedrate.DataLoader(_Pairs(), batch_size=2, num_workers=workers, workers="process")
        b = next(iter(loader))
        assert isinstance(b[0], np.ndarray)
        assert b[1].tolist() == [0, 1]
    # The torch class makes tensors of the same dataset.
    from feedrate.torch import DataLoader

    assert isinstance(next(iter(DataLoader(_Pairs(), batch_size=2)))[0], torch.Tensor)


class _Pairs:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return np.full(3, i), i


def test_kept_arrays_and_views(tmp_path: Any) -> None:
    out = without_torch(
        """
        import gc
        import feedrate
        from plain_data import Squares
        if __name__ == "__main__":
            for workers in (0, 2):
                kept = []
                for b in feedrate.DataLoader(Squares(200), batch_size=4, num_workers=workers, workers="process"):
                    kept.append((b["x"][1:3, 1], b["i"].tolist()))
                    del b
                gc.collect()
                assert all((v[0] == i[1]).all() and (v[1] == i[2]).all() for v, i in kept)
            print("fine")
        """,
        tmp_path,
    )
    assert out.strip() == "fine"
