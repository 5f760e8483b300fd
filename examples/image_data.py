"""Images for training and evaluation, by `tf.data` on every backend."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHUFFLED = 16384


@dataclass(frozen=True)
class Images:
    """Pairs of an image, encoded or not, and a label."""

    train: Any
    test: Any
    train_size: int
    test_size: int
    classes: int
    # Small images are padded and cropped; of large ones a part is scaled.
    small: bool = False


def load_images(args):
    if args.dataset == "synthetic":
        return synthetic(args)
    if args.dataset in ("imagenet2012", "imagenette", "cifar10"):
        return from_tfds(args)
    return from_folder(args)


def from_tfds(args):
    import tensorflow_datasets as tfds

    names = {"imagenette": "imagenette/320px-v2"}
    test = "test" if args.dataset == "cifar10" else "validation"
    try:
        builder = tfds.builder(
            names.get(args.dataset, args.dataset), data_dir=args.data_dir
        )
        builder.download_and_prepare()
    except Exception as error:
        raise SystemExit(missing(args, error)) from error
    sizes = [
        min(builder.info.splits[split].num_examples, limit or 2**31)
        for split, limit in (
            ("train", args.train_images),
            (test, args.test_images),
        )
    ]
    splits = builder.as_dataset(
        split=[f"train[:{sizes[0]}]", f"{test}[:{sizes[1]}]"],
        decoders={"image": tfds.decode.SkipDecoding()},
        as_supervised=True,
    )
    classes = builder.info.features["label"].num_classes
    return Images(*splits, *sizes, classes, small=args.dataset == "cifar10")


def missing(args, error):
    """What to do about a data set that is not there."""
    where = args.data_dir or "~/tensorflow_datasets"
    manual = (
        "ImageNet has to be downloaded by hand: get ILSVRC2012_img_train.tar "
        "and ILSVRC2012_img_val.tar from https://image-net.org and put them "
        f"into {where}/downloads/manual."
    )
    other = (
        "tensorflow-datasets downloads it on first use, which needs the "
        f"network; what it has prepared once is found in {where}."
    )
    return (
        f"The data set '{args.dataset}' is not there and could not be made.\n"
        + (manual if args.dataset == "imagenet2012" else other)
        + "\n`--dataset` may also be a folder of images, and `--local` needs "
        f"none.\nReceived: --dataset {args.dataset} --data-dir "
        f"{args.data_dir}; {type(error).__name__}: {str(error)[:300]}"
    )


def from_folder(args):
    folder = Path(args.dataset).expanduser()
    found = {}
    for split in ("train", "test"):
        found[split] = sorted(
            path
            for path in folder.glob(f"{split}/*/*")
            if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".bmp", ".gif")
        )
        if not found[split]:
            raise SystemExit(
                f"There are no images in {folder}/{split}/CLASS/.\n"
                "`--dataset` must be imagenet2012, imagenette, cifar10 or a "
                "folder with train/CLASS/ and test/CLASS/ in it.\n"
                f"Received: --dataset {args.dataset}"
            )
    names = sorted({path.parent.name for path in found["train"]})
    unknown = {path.parent.name for path in found["test"]} - {*names}
    if unknown:
        raise SystemExit(
            f"The classes {sorted(unknown)} are in {folder}/test and not in "
            f"{folder}/train."
        )

    def dataset(paths, limit):
        # Not class by class, as the buffer for shuffling may be smaller.
        np.random.default_rng(0).shuffle(paths)
        paths = paths[:limit]
        labels = [names.index(path.parent.name) for path in paths]
        files = tf.data.Dataset.from_tensor_slices(
            ([str(path) for path in paths], labels)
        )
        images = files.map(lambda path, y: (tf.io.read_file(path), y))
        return images, len(paths)

    train, train_size = dataset(found["train"], args.train_images)
    test, test_size = dataset(found["test"], args.test_images)
    return Images(train, test, train_size, test_size, len(names))


def synthetic(args):
    """Gratings: the class is the direction, the rest is random."""
    random = np.random.default_rng(0)
    classes, size = 4, args.size
    rows, columns = np.mgrid[:size, :size] / size

    def make(count):
        labels = random.integers(classes, size=count)
        angle = (np.pi * labels / classes)[:, None, None]
        wave = rows * np.cos(angle) + columns * np.sin(angle)
        phase, waves = random.uniform((0, 3), (6, 6), (count, 2)).T
        image = np.sin(6 * waves[:, None, None] * wave + phase[:, None, None])
        color = random.uniform(40, 100, (count, 1, 1, 3))
        image = 128 + image[..., None] * color
        image += random.normal(0, 20, image.shape)
        image = image.clip(0, 255).astype("uint8")
        return tf.data.Dataset.from_tensor_slices((image, labels))

    sizes = args.train_images or 256, args.test_images or 128
    return Images(*map(make, sizes), *sizes, classes, small=True)


def decode(image):
    if image.dtype == tf.string:
        return tf.io.decode_image(image, channels=3, expand_animations=False)
    return image


def normalize(image, size):
    image = tf.cast(tf.reshape(image, (size, size, 3)), "float32") / 255
    return (image - MEAN) / STD


def for_training(image, seed, size, small):
    """A random part of an image, perhaps mirrored."""
    image = decode(image)
    if small:
        image = tf.image.resize(image, (size, size))
        edge = size // 8
        image = tf.pad(image, ((edge, edge), (edge, edge), (0, 0)))
        image = tf.image.stateless_random_crop(image, (size, size, 3), seed)
    else:
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros((1, 0, 4)),
            seed,
            min_object_covered=0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1),
            use_image_if_no_bounding_boxes=True,
        )
        part = tf.slice(image, begin, (*tf.unstack(extent)[:2], 3))
        image = tf.image.resize(part, (size, size))
    flipped = tf.image.stateless_random_flip_left_right(image, seed + 1)
    return normalize(flipped, size)


def for_evaluation(image, size, small):
    """The middle of an image, 7/8 of its shorter side."""
    image = decode(image)
    if not small:
        side = tf.cast(tf.reduce_min(tf.shape(image)[:2]) * 7 // 8, "int32")
        top, left = tf.unstack((tf.shape(image)[:2] - side) // 2)
        image = image[top : top + side, left : left + side]
    return normalize(tf.image.resize(image, (size, size)), size)


def training_data(args, images, seed, start, epochs):
    """The batches of the epochs from `start` on, one after another."""
    # Seeds of zero mean something else to TensorFlow.
    seed = tf.constant(seed + 1, "int64")

    def epoch_of(epoch):
        def prepare(index, example):
            own = tf.stack([seed * 100003 + epoch, index])
            x = for_training(example[0], own, args.size, images.small)
            return x, example[1]

        return (
            images.train.shuffle(SHUFFLED, seed=seed * 100003 + epoch)
            .enumerate()
            .map(prepare, tf.data.AUTOTUNE, deterministic=True)
            .batch(args.batch, drop_remainder=True)
        )

    epochs = tf.data.Dataset.range(start, epochs)
    return epochs.flat_map(epoch_of).prefetch(tf.data.AUTOTUNE)


def evaluation_data(args, examples, count, small):
    def prepare(image, label):
        return for_evaluation(image, args.size, small), label

    prepared = examples.map(prepare, tf.data.AUTOTUNE)
    batch = evaluation_batch(args.batch, count, device_count())
    return prepared.batch(batch).prefetch(tf.data.AUTOTUNE)


def evaluation_batch(batch, count, devices):
    """The largest batch of which each device has a share, to the last one."""
    if devices == 1:
        return batch
    fitting = [
        size for size in range(devices, batch + 1, devices) if count % size == 0
    ]
    if not fitting:
        raise SystemExit(
            f"{count} images for evaluation cannot be shared out evenly among "
            f"{devices} devices. Choose another --test-images."
        )
    return fitting[-1]


def device_count():
    if keras.config.backend() == "jax":
        return len(keras.distribution.list_devices())
    return 1
