"""feedrate.ImageFolder: torchvision's classes, and its batches, in every pool."""

import os
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as StockLoader

import feedrate
import feedrate.image
import feedrate.samplers
import feedrate.torch
from feedrate.image import Transform, from_torchvision
from images.photos import crops, jpeg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchvision import datasets
    from torchvision import transforms as v1

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POOLS = [(0, "process"), (2, "process"), (2, "thread")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("folder")
    for k, image in enumerate(crops(22, 90, 70)):
        folder = root / ("bird", "cat", "dog")[k % 3] / ("", "deep")[k % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{k}.{('jpg', 'JPEG', 'Jpg')[k % 3]}").write_bytes(jpeg(image))
    (root / "cat" / "notes.txt").write_text("no image")
    return root


def compose():
    return v1.Compose(
        [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ColorJitter(0.2, 0.2), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    )


class Wrapped:
    """What knows nothing of batches."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


def equal(a, b):
    return all(torch.equal(x.as_subclass(torch.Tensor), y) for x, y in zip(a, b, strict=True))


def test_the_classes_are_torchvisions(root):
    stock, ours = datasets.ImageFolder(str(root)), feedrate.ImageFolder(root)
    for name in ("classes", "class_to_idx", "samples", "targets", "imgs"):
        assert getattr(ours, name) == getattr(stock, name), name
    assert len(ours) == len(stock) == 22
    pixels, target = ours[5]
    assert np.array_equal(pixels, np.asarray(stock[5][0]))
    assert target == stock[5][1]
    assert pickle.loads(pickle.dumps(ours)).samples == ours.samples


def test_errors_are_torchvisions(tmp_path):
    for make in (datasets.ImageFolder, feedrate.ImageFolder):
        with pytest.raises(FileNotFoundError, match="class folder"):
            make(str(tmp_path))
    (tmp_path / "full").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "a.png").write_bytes(b"")
    messages = []
    for make in (datasets.ImageFolder, feedrate.ImageFolder):
        with pytest.raises(FileNotFoundError, match="Found no valid file") as caught:
            make(str(tmp_path))
        messages.append(str(caught.value))
        assert make(str(tmp_path), allow_empty=True).classes == ["empty", "full"]
        assert len(make(str(tmp_path), is_valid_file=lambda path: path.endswith("a.png"), allow_empty=True)) == 1
    assert messages[0] == messages[1]
    with pytest.raises(ValueError, match=r"a\.png"):
        feedrate.ImageFolder(tmp_path, allow_empty=True)[0]


@pytest.mark.parametrize(("workers", "pool"), POOLS[:2])
def test_a_translated_pipeline_gives_torchvisions_batches(root, workers, pool):
    """With the drop-in's default seeding, in the main process and in worker processes: batch for batch those of the stock loader."""
    stock = datasets.ImageFolder(str(root), compose())
    ours = feedrate.ImageFolder(root, from_torchvision(compose()))
    batches = []
    for dataset, loader in ((stock, StockLoader), (ours, feedrate.torch.DataLoader)):
        torch.manual_seed(11)
        made = loader(dataset, batch_size=4, shuffle=True, num_workers=workers)
        batches.append([batch for _ in range(2) for batch in made])
    assert len(batches[0]) == len(batches[1]) == 12
    for a, b in zip(*batches, strict=True):
        assert type(b) is list
        assert equal(a, b)


@pytest.mark.parametrize("draws", ["keyed", "torch"])
def test_keyed_batches_do_not_depend_on_the_pool(root, draws):
    transform = Transform().random_resized_crop(32).horizontal_flip().normalize(MEAN, STD)
    if draws == "torch":
        transform = from_torchvision(compose())
    found = []
    for workers, pool in POOLS:
        dataset = feedrate.ImageFolder(root, transform)
        loader = feedrate.torch.DataLoader(
            dataset,
            5,
            shuffle=True,
            num_workers=workers,
            workers=pool,
            seeding="sample",
            seed=3,
            generator=torch.Generator().manual_seed(1),
        )
        found.append([batch for _ in range(2) for batch in loader])
    # A wrapped dataset is asked for samples, which draw the same.
    dataset = Wrapped(feedrate.ImageFolder(root, transform))
    loader = feedrate.torch.DataLoader(
        dataset, 5, shuffle=True, seeding="sample", seed=3, generator=torch.Generator().manual_seed(1)
    )
    found.append([batch for _ in range(2) for batch in loader])
    for other in found[1:]:
        assert all(equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert not torch.equal(found[0][0][0], found[0][5][0])


def test_seeding_sample_is_torchvisions_too(root):
    """Under seeding="sample" the process-wide generators are seeded for each sample, and a translated pipeline draws what they would give."""
    found = []
    for dataset in (datasets.ImageFolder(str(root), compose()), feedrate.ImageFolder(root, from_torchvision(compose()))):
        loader = feedrate.torch.DataLoader(dataset, 5, num_workers=1, seeding="sample", seed=3)
        found.append(list(loader))
    assert all(equal(a, b) for a, b in zip(*found, strict=True))


def test_threads_draw_anew_for_each_sample(root):
    dataset = feedrate.ImageFolder(root, Transform().random_resized_crop(16))
    loader = feedrate.torch.DataLoader(dataset, 11, num_workers=1, workers="thread")
    (a, _), _ = loader
    again, _ = next(iter(loader))
    assert not torch.equal(a[0], a[3])
    assert not torch.equal(a, again)
    assert a.dtype == torch.uint8


@pytest.mark.parametrize(("workers", "pool"), POOLS)
def test_without_torch(root, workers, pool):
    dataset = feedrate.ImageFolder(root, Transform().resize((24, 20)).to("float16"), target_transform=lambda target: target * 10)
    if pool == "process" and workers:
        dataset.target_transform = times_ten
    loader = feedrate.DataLoader(dataset, 8, num_workers=workers, workers=pool)
    batches = list(loader)
    assert [len(images) for images, _ in batches] == [8, 8, 6]
    images, targets = batches[1]
    assert images.dtype == np.float16
    assert images.shape == (8, 3, 24, 20)
    assert targets.tolist() == [10 * dataset.targets[k] for k in range(8, 16)]
    assert np.array_equal(images[3], dataset[11][0])
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        # NumPy has no bfloat16: what comes are tensors, which this collation does not know.
        next(iter(feedrate.DataLoader(feedrate.ImageFolder(root, Transform().resize((4, 4)).to("bfloat16")), 2)))


def times_ten(target):
    return target * 10


def test_auto_takes_threads_for_native_datasets(root):
    def threads(dataset):
        return feedrate._options.use_threads(feedrate.DataLoader(dataset, 2, num_workers=1))

    assert threads(feedrate.ImageFolder(root, Transform().resize((4, 4))))
    assert not threads(feedrate.ImageFolder(root, compose()))


def test_a_function_as_transform_gets_a_pillow_image(root):
    stock, ours = datasets.ImageFolder(str(root), compose()), feedrate.ImageFolder(root, compose())
    for dataset in (stock, ours):
        torch.manual_seed(2)
        dataset.found = dataset[7][0]
    assert torch.equal(stock.found, ours.found)


def test_a_users_collation_gets_samples(root):
    dataset = feedrate.ImageFolder(root, Transform().resize(20))
    loader = feedrate.DataLoader(
        dataset, 4, collate_fn=lambda samples: feedrate.image.pad_batch([image for image, _ in samples], layout="HWC")
    )
    batch, mask = next(iter(loader))
    assert batch.shape[:1] == mask.shape[:1] == (4,)
    assert mask.all()


def test_buckets(root):
    buckets = feedrate.image.Buckets(
        feedrate.image.aspect_buckets(48 * 48, multiple=16), Transform().horizontal_flip().to("float32")
    )
    dataset = feedrate.ImageFolder(root, loader=buckets)
    which = buckets.of([path for path, _ in dataset.samples])
    assert set(which) == {feedrate.image.nearest_bucket(70, 90, buckets.sizes)}
    sampler = feedrate.samplers.BucketBatchSampler(which, 4, boundaries=range(1, len(buckets.sizes)), seed=1)
    images, _ = next(iter(feedrate.DataLoader(dataset, batch_sampler=sampler)))
    assert images.shape == (4, 3, *buckets.sizes[which[0]])
    tall = np.zeros((90, 30, 3), np.uint8)
    assert buckets(tall).shape[1] > buckets(tall).shape[2]


def test_a_bad_image_is_named(root, tmp_path):
    os.symlink(root / "cat", tmp_path / "cat")
    (tmp_path / "cow").mkdir()
    (tmp_path / "cow" / "half.jpg").write_bytes(jpeg(crops(1, 60, 50)[0])[:900])
    dataset = feedrate.ImageFolder(tmp_path, Transform().resize((8, 8)))
    for workers, pool in POOLS:
        loader = feedrate.torch.DataLoader(dataset, 3, num_workers=workers, workers=pool)
        with pytest.raises(ValueError, match=r"half\.jpg"):
            list(loader)


def test_a_step_of_a_pipeline(root, tmp_path):
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in sorted((root / "cat").glob("*.JPEG")):
            tar.add(name, f"{name.stem}.jpg")
    transform = Transform().random_resized_crop(16).normalize(0.5, 0.5)
    pipeline = feedrate.open(tmp_path / "a.tar").image(transform)
    assert "random_resized_crop(16x16" in str(pipeline)
    assert pipeline.native
    elements = list(pipeline)
    assert elements
    assert all(element["jpg"].shape == (3, 16, 16) and element["jpg"].dtype == np.float32 for element in elements)
    pipeline.set_epoch(0)
    assert all(np.array_equal(a["jpg"], b["jpg"]) for a, b in zip(elements, pipeline, strict=True))
    again = feedrate.open(tmp_path / "a.tar").image(transform, field="jpg").seed(5)
    assert not np.array_equal(next(iter(again))["jpg"], elements[0]["jpg"])
    loader = feedrate.DataLoader(pipeline, 2, num_workers=1)
    assert next(iter(loader))["jpg"].shape == (2, 3, 16, 16)
    with pytest.raises(TypeError, match="Transform"):
        pipeline.image(len)
    with pytest.raises(KeyError, match="no field 'png'"):
        next(iter(feedrate.open(tmp_path / "a.tar").image(transform, field="png")))
