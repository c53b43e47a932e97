"""Transforms, bit for bit as torchvision carries them out on Pillow images, and with its draws."""

import io
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import feedrate.image
from feedrate.image import Transform, from_torchvision
from images.photos import crops, jpeg, photographs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchvision import transforms as v1

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MODES = {
    "nearest": "NEAREST",
    "bilinear": "BILINEAR",
    "bicubic": "BICUBIC",
    "box": "BOX",
    "hamming": "HAMMING",
    "lanczos": "LANCZOS",
}


def interpolation(rng):
    return getattr(v1.InterpolationMode, MODES[rng.choice(sorted(MODES))])


def some_geometry(lib, rng):
    size = rng.choice([rng.randint(1, 90), (rng.randint(1, 90), rng.randint(1, 90))])
    return rng.choice(
        [
            lambda: lib.RandomResizedCrop(size, scale=(rng.uniform(0.05, 0.5), 1.0), interpolation=interpolation(rng)),
            lambda: lib.RandomResizedCrop(size, ratio=(0.2, rng.uniform(1, 5)), scale=(0.5, 1)),
            lambda: lib.Resize(size, interpolation=interpolation(rng)),
            lambda: lib.Resize(30, max_size=rng.randint(31, 60)),
            lambda: lib.CenterCrop(size),
            lambda: lib.RandomCrop(
                size, padding=rng.choice([None, 3, (2, 5), (1, 2, 3, 4)]), pad_if_needed=True, fill=rng.choice([0, (3, 200, 77)])
            ),
            lambda: lib.RandomCrop(
                4, padding=rng.choice([2, (1, 3)]), padding_mode=rng.choice(["edge", "symmetric"]), pad_if_needed=False
            ),
            lambda: lib.Pad(rng.choice([1, (2, 3), (4, 3, 2, 1)]), fill=rng.choice([0, 17, (1, 2, 3)])),
            lambda: lib.Pad(2, padding_mode=rng.choice(["edge", "reflect", "symmetric"])),
            lambda: lib.RandomHorizontalFlip(rng.choice([0.5, 0.1, 1.0])),
            lambda: lib.RandomVerticalFlip(0.5),
        ]
    )()


def some_colour(lib, rng):
    return rng.choice(
        [
            lambda: lib.ColorJitter(0.4, 0.4, 0.4, 0.1),
            lambda: lib.ColorJitter(brightness=(0.0, 3.0), contrast=(0.0, 3.0), saturation=(0.0, 3.0)),
            lambda: lib.ColorJitter(hue=0.5),
            lambda: lib.ColorJitter(contrast=rng.uniform(0, 1)),
            lambda: lib.RandomApply([lib.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.6),
            lambda: lib.RandomGrayscale(0.4),
            lambda: lib.Grayscale(3),
        ]
    )()


def some_end(lib, rng):
    ends = [
        lambda: [lib.PILToTensor()],
        lambda: [lib.PILToTensor(), lib.ConvertImageDtype(torch.float32), lib.Normalize(MEAN, STD)],
    ]
    if lib is v1:
        ends += [lambda: [lib.ToTensor()], lambda: [lib.ToTensor(), lib.Normalize(MEAN, STD)]]
    else:
        ends += [
            lambda: [lib.ToImage(), lib.ToDtype(torch.float32, scale=True), lib.Normalize(MEAN, STD)],
            lambda: [lib.ToImage(), lib.ToDtype(torch.float32), lib.Normalize((100,), (50.0,))],
            lambda: [lib.ToImage(), lib.ToDtype(torch.float32, scale=True), lib.Normalize(MEAN, STD), lib.ToDtype(torch.float16)],
            lambda: [
                lib.PILToTensor(),
                lib.ToDtype(torch.float32, scale=True),
                lib.Normalize(MEAN, STD),
                lib.ToDtype(torch.bfloat16),
            ],
        ]
    return rng.choice(ends)()


def some_compose(lib, rng):
    steps = [some_geometry(lib, rng) if rng.random() < 0.65 else some_colour(lib, rng) for _ in range(rng.randint(1, 5))]
    return lib.Compose([*steps, *some_end(lib, rng)])


def same(expected, found):
    expected = expected.as_subclass(torch.Tensor)
    assert type(found) is torch.Tensor
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[found.element_size()]
    assert torch.equal(found.view(kind), expected.contiguous().view(kind))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lib", [v1, v2], ids=["v1", "v2"])
def test_translated_pipelines_give_the_same_tensors(lib):
    """Generated pipelines, over files and over images in memory, a sample and another one behind it from the same generator."""
    rng = random.Random(7)
    small = [photo.resize((rng.randint(20, 90), rng.randint(20, 90))) for photo in photographs()[:6]]
    files = [jpeg(image, quality=rng.randint(60, 95), subsampling=rng.choice([0, 1, 2])) for image in small]
    done = 0
    for case in range(250):
        compose = some_compose(lib, rng)
        ours = from_torchvision(compose)
        which = [rng.randrange(len(files)) for _ in range(2)]
        images = [Image.open(io.BytesIO(files[k])).convert("RGB") for k in which]
        torch.manual_seed(case)
        try:
            expected = [compose(image) for image in images]
        except ValueError:
            # A crop of 4 x 4 of less.
            with pytest.raises(ValueError, match="crop"):
                [ours(files[k]) for k in which]
            continue
        after = torch.get_rng_state()
        done += 1
        for items in ([files[k] for k in which], images):
            torch.manual_seed(case)
            found = ours(items)
            assert torch.equal(torch.get_rng_state(), after), compose
            for a, b in zip(expected, found, strict=True):
                same(a, b)
    assert done > 200


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lib", [v1, v2], ids=["v1", "v2"])
def test_imagenet_pipelines(lib):
    train = lib.Compose(
        [lib.RandomResizedCrop(224), lib.RandomHorizontalFlip(), lib.ToTensor(), lib.Normalize(MEAN, STD)][
            : 4 if lib is v1 else 2
        ]
    )
    test = lib.Compose(
        [
            lib.Resize(256),
            lib.CenterCrop(224),
            *([lib.ToTensor()] if lib is v1 else [lib.ToImage(), lib.ToDtype(torch.float32, scale=True)]),
            lib.Normalize(MEAN, STD),
        ]
    )
    if lib is v2:
        train = lib.Compose([*train.transforms, lib.ToImage(), lib.ToDtype(torch.float32, scale=True), lib.Normalize(MEAN, STD)])
    images = [*crops(6), photographs()[0]]
    files = [jpeg(image, quality=95) for image in images]
    for compose in (train, test):
        ours = from_torchvision(compose)
        for k, file in enumerate(files):
            image = Image.open(io.BytesIO(file)).convert("RGB")
            torch.manual_seed(k)
            expected = compose(image)
            torch.manual_seed(k)
            same(expected, ours(file))


def test_what_is_not_translated_is_named():
    compose = v1.Compose([v1.RandomRotation(10), v1.Resize(20), v1.GaussianBlur(3), v1.ToTensor(), v1.Lambda(abs)])
    with pytest.raises(feedrate.image.NotTranslated) as caught:
        from_torchvision(compose)
    assert [number for number, _, _ in caught.value.report.left] == [0, 2, 4]
    assert "RandomRotation" in str(caught.value)
    assert "GaussianBlur" in str(caught.value)
    assert [number for number, _, _ in caught.value.report.translated] == [1, 3]


def test_the_rest_runs_in_python():
    image = crops(1, 90, 70)[0]
    compose = v1.Compose([v1.RandomCrop(50), v1.RandomRotation(30), v1.ToTensor(), v1.RandomErasing(p=1.0)])
    split = from_torchvision(compose, rest="python")
    assert next(name for _, name, _ in split.report.left).startswith("RandomRotation")
    torch.manual_seed(3)
    expected = compose(image)
    torch.manual_seed(3)
    same(expected, split(image))
    tail = v1.Compose([v1.RandomCrop(50), v1.ToTensor(), v1.RandomErasing(p=1.0)])
    split = from_torchvision(tail, rest="python")
    torch.manual_seed(4)
    expected = tail(image)
    torch.manual_seed(4)
    same(expected, split(image))


def test_steps_on_tensors_are_refused_or_taken_as_pillows():
    compose = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(20, antialias=True), v2.ToDtype(torch.float32, scale=True)])
    with pytest.raises(feedrate.image.NotTranslated, match="on_tensors"):
        from_torchvision(compose)
    image = crops(1, 90, 70)[0]
    ours = from_torchvision(compose, on_tensors="pillow")
    torch.manual_seed(1)
    expected = compose(image)
    torch.manual_seed(1)
    found = ours(image)
    assert (found - expected).abs().max() <= 2 / 255


def test_every_colour_turns_as_in_pillow():
    """All 16.8 million colours would take long: a lattice of them, and all grays."""
    axis = np.r_[0:256:5, 254, 1]
    cube = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(1, -1, 3).astype(np.uint8)
    image = Image.fromarray(cube)
    from torchvision.transforms import functional

    for hue in (-0.5, -0.21, -1 / 255, 0.0, 0.004, 0.1, 0.37, 0.5):
        ours = Transform().color_jitter(hue=(hue, hue)) if hue else Transform().color_jitter(hue=(-0.0001, 0.0001))
        found = ours(image, parameters=[[1, 3, 0, 1, 2, np.nan, np.nan, np.nan, hue]])
        assert np.array_equal(found, np.asarray(functional.adjust_hue(image, hue))), hue
    for name, place in (("brightness", 0), ("contrast", 1), ("saturation", 2)):
        for factor in (0.0, 0.3, 0.77, 1.0, 1.001, 2.5):
            factors = [np.nan] * 4
            factors[place] = factor
            ours = Transform().color_jitter(**{name: (0, 5)})
            found = ours(image, parameters=[[1, 0, 1, 2, 3, *factors]])
            assert np.array_equal(found, np.asarray(getattr(functional, f"adjust_{name}")(image, factor))), (name, factor)


def test_definitions_are_values():
    a = Transform().random_resized_crop(224).horizontal_flip().normalize(MEAN, STD)
    b = Transform([("random_resized_crop", 224), ("horizontal_flip",), ("normalize", MEAN, {"std": STD})])
    assert a == b
    assert hash(a) == hash(b)
    assert a != b.to("float16")
    assert pickle.loads(pickle.dumps(a)) == a
    assert str(a) == (
        "decode(RGB) | random_resized_crop(224x224, scale=0.08..1, ratio=0.75..1.3333333333333333, bilinear) | horizontal_flip(0.5) | float32 CHW / 255 "
        "normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])"
    )
    assert a.size == (224, 224)
    assert Transform().resize(20).size is None
    with pytest.raises(ValueError, match="no step 'rotate'"):
        Transform([("rotate", 3)])


def test_keys_and_parameters():
    transform = Transform().random_resized_crop(32).horizontal_flip().color_jitter(0.3, 0.3, p=0.5).to("float32")
    files = [jpeg(image) for image in crops(4, 80, 60)]
    a = transform(files, seed=5, epoch=2, position=10)
    assert np.array_equal(a, transform(files, seed=5, epoch=2, position=10, threads=3))
    assert np.array_equal(a[2], transform(files[2], seed=5, epoch=2, position=12))
    assert not np.array_equal(a, transform(files, seed=5, epoch=3, position=10))
    assert not np.array_equal(a, transform(files, seed=6, epoch=2, position=10))
    batch = transform.open(files)
    batch.draw([(5, 2, 0, 10 + k) for k in range(4)])
    parameters = batch.parameters
    assert np.array_equal(a, transform(files, parameters=parameters))
    # Another step at the end leaves the others as they are.
    longer = transform.vertical_flip()
    batch = longer.open(files)
    batch.draw([(5, 2, 0, 10 + k) for k in range(4)])
    assert str([image[:3] for image in batch.parameters]) == str(parameters)
    with pytest.raises(ValueError, match="random steps"):
        transform(files[0], parameters=[[1]])
    with pytest.raises(ValueError, match="does not take"):
        transform(files[0], parameters=[[1, 2], [1], [0]])


def test_outputs_of_every_kind():
    image = crops(1, 50, 40)[0]
    pixels = np.asarray(image)
    base = Transform()
    assert np.array_equal(base(image), pixels)
    assert np.array_equal(base.to("uint8")(image), pixels.transpose(2, 0, 1))
    expected = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div(255)
    assert np.array_equal(base.to("float32")(image), expected.numpy())
    assert np.array_equal(base.to("float16")(image), expected.half().numpy())
    assert np.array_equal(base.to("float32", "HWC")(image), expected.numpy().transpose(1, 2, 0))
    assert torch.equal(base.to("bfloat16")(image), expected.bfloat16())
    gray = Transform(mode="L").to("float32")(image)
    assert gray.shape == (1, 40, 50)
    assert np.array_equal(gray[0], np.asarray(image.convert("L"), np.float32) / 255)
    out = torch.empty(2, 3, 40, 50, dtype=torch.bfloat16)
    assert base.to("bfloat16")([image, image], out=out) is out
    assert torch.equal(out[1], expected.bfloat16())


def test_different_sizes_come_as_a_list_or_padded():
    images = [image.resize(size) for image, size in zip(crops(3, 60, 60), ((30, 20), (25, 44), (10, 10)), strict=True)]
    found = Transform().to("float32")(images)
    assert [a.shape for a in found] == [(3, 20, 30), (3, 44, 25), (3, 10, 10)]
    batch, mask = feedrate.image.pad_batch(found, fill=-1.0, multiple=8)
    assert batch.shape == (3, 3, 48, 32)
    assert mask.shape == (3, 48, 32)
    for k, array in enumerate(found):
        h, w = array.shape[1:]
        assert np.array_equal(batch[k, :, :h, :w], array)
        assert mask[k].sum() == h * w
        assert (batch[k][:, ~mask[k]] == -1).all()
    tensors, mask = feedrate.image.pad_batch([torch.from_numpy(a) for a in found])
    assert tensors.shape == (3, 3, 44, 30)
    assert mask.dtype == torch.bool
    pixels, _ = feedrate.image.pad_batch(Transform()(images), layout="HWC")
    assert pixels.shape == (3, 44, 30, 3)
    with pytest.raises(ValueError, match="one dtype"):
        feedrate.image.pad_batch([found[0], found[1].astype(np.float16)])


def test_aspect_buckets():
    sizes = feedrate.image.aspect_buckets(512 * 512)
    assert (512, 512) in sizes
    assert all(h % 64 == 0 and w % 64 == 0 and h * w <= 512 * 512 and max(h, w) <= 2 * min(h, w) for h, w in sizes)
    assert sizes == sorted(sizes, key=lambda size: size[1] / size[0])
    assert len({h for h, _ in sizes}) == len(sizes)
    assert sizes[feedrate.image.nearest_bucket(300, 300, sizes)] == (512, 512)
    h, w = sizes[feedrate.image.nearest_bucket(375, 500, sizes)]
    assert 1.2 < w / h < 1.5
    with pytest.raises(ValueError, match="no size"):
        feedrate.image.aspect_buckets(100)


def test_smaller_decoding_changes_little():
    """The effect of shrink="dct", which is off by default."""
    exact = Transform().resize((64, 64))
    quick = Transform(shrink="dct").resize((64, 64))
    assert exact != quick
    for image in crops(4, 600, 450):
        file = jpeg(image, quality=95)
        a, b = exact(file).astype(int), quick(file).astype(int)
        c = Transform(shrink="dct", reducing_gap=1).resize((64, 64))(file).astype(int)
        assert 0 < np.abs(a - b).mean() < np.abs(a - c).mean() < 3
    with pytest.raises(ValueError, match="reducing_gap is a number from 1 on, not 0.5"):
        Transform(shrink="dct", reducing_gap=0.5).resize(9)(file)
    # Nothing to gain: the same pixels.
    assert np.array_equal(Transform(shrink="dct").resize((300, 300))(file), Transform().resize((300, 300))(file))


def test_bad_images_are_named(tmp_path):
    good = jpeg(crops(1, 40, 30)[0])
    (tmp_path / "bad.jpg").write_bytes(b"<html>no image</html>")
    with pytest.raises(ValueError, match=r"bad\.jpg"):
        Transform()(tmp_path / "bad.jpg")
    with pytest.raises(ValueError, match="image 1"):
        Transform().resize((5, 5))([good, good[: len(good) // 2], good])
    with pytest.raises(FileNotFoundError, match="none"):
        Transform()(str(tmp_path / "none.jpg"))
    with pytest.raises(TypeError, match="int"):
        Transform()(5)
    with pytest.raises(ValueError, match="channels"):
        Transform()(np.zeros((5, 5), np.uint8))
    with pytest.raises(ValueError, match="9x9"):
        Transform().random_crop(9)(np.zeros((5, 5, 3), np.uint8))
