use super::*;
use crate::decode::Rect;
use crate::decode::resample::View;
use crate::random::{Key, Keyed};

fn size(dice: &mut Keyed, least: u64, most: u64) -> u32 {
    u32::try_from(least + dice.below(most - least + 1)).unwrap()
}

fn some_step(dice: &mut Keyed) -> Step {
    let filter = Filter::ALL[usize::try_from(dice.below(6)).unwrap()];
    let to = Size::new(size(dice, 1, 40), size(dice, 1, 40));
    let mode = [PadMode::Constant, PadMode::Edge, PadMode::Symmetric, PadMode::Reflect]
        [usize::try_from(dice.below(4)).unwrap()];
    let padding = Padding {
        left: size(dice, 0, 5),
        top: size(dice, 0, 5),
        right: size(dice, 0, 5),
        bottom: size(dice, 0, 5),
        fill: [9, 8, 7, 6],
        mode,
    };
    match dice.below(13) {
        0 | 1 => Step::RandomResizedCrop {
            size: to,
            scale: (0.1, 1.0),
            ratio: (0.5, 2.0),
            filter,
        },
        2 => Step::Resize {
            to: Target::Short {
                size: to.width,
                most: (dice.below(2) == 0).then_some(to.width + 9),
            },
            filter,
        },
        3 => Step::Resize {
            to: if dice.below(2) == 0 {
                Target::Exact(to)
            } else {
                Target::Fit(to)
            },
            filter,
        },
        4 => Step::Resize {
            to: Target::Letterbox(to, [1, 2, 3, 4]),
            filter,
        },
        5 => Step::CenterCrop(to),
        6 => Step::RandomCrop {
            size: to,
            padding: (dice.below(2) == 0).then_some(padding),
            if_needed: Some((PadMode::Constant, [5; 4])),
        },
        7 => Step::Pad(padding),
        8 => Step::HorizontalFlip(0.5),
        9 => Step::VerticalFlip(0.5),
        10 => Step::ColorJitter {
            brightness: Some((0.2, 1.8)),
            contrast: Some((0.5, 1.5)),
            saturation: (dice.below(2) == 0).then_some((0.0, 2.0)),
            hue: Some((-0.5, 0.5)),
            chance: Some(0.7),
        },
        11 => Step::Grayscale(3),
        _ => Step::RandomGrayscale(0.5),
    }
}

/// Steps together give what they give one by one.
#[test]
fn fused_is_one_after_the_other() {
    let mut dice = Key {
        seed: 3,
        ..Key::default()
    }
    .stream();
    let (mut worker, mut other) = (Worker::new(), Worker::new());
    for case in 0..800_u64 {
        let channels = if case % 3 == 0 { Channels::Gray } else { Channels::Rgb };
        let mut whole = ImageTransform::new(channels).unwrap();
        let count = whole.input_channels();
        for _ in 0..=dice.below(6) {
            let step = some_step(&mut dice);
            if count == 3 || !matches!(step, Step::Grayscale(_)) {
                whole = whole.step(step).unwrap();
            }
        }
        let image = Size::new(size(&mut dice, 1, 50), size(&mut dice, 1, 50));
        let bytes: Vec<u8> = (0..image.width as usize * image.height as usize * count)
            .map(|_| dice.next_u32().to_le_bytes()[1])
            .collect();
        let key = Key {
            position: case,
            ..Key::default()
        };
        let drawn = whole.draw(image, key).unwrap();
        let view = View::new(&bytes, image.width as usize, image.height as usize, count);
        let to = whole.size_of(image).unwrap();
        let mut found = vec![0; whole.bytes(to)];
        worker
            .run(&whole, Source::Pixels(view), image, &drawn, &mut found)
            .unwrap();

        let (mut bytes, mut at) = (bytes, image);
        let mut left = drawn.iter();
        for step in whole.steps() {
            let single = ImageTransform::new(channels).unwrap().step(step.clone()).unwrap();
            let drawn: Vec<Drawn> = if step.is_random() {
                left.next().cloned().into_iter().collect()
            } else {
                Vec::new()
            };
            let to = single.size_of(at).unwrap();
            let mut out = vec![0; single.bytes(to)];
            let view = View::new(&bytes, at.width as usize, at.height as usize, count);
            other.run(&single, Source::Pixels(view), at, &drawn, &mut out).unwrap();
            (bytes, at) = (out, to);
        }
        assert_eq!(at, to, "{whole}");
        assert!(bytes == found, "{whole} on {image}");
        if let Some(fixed) = whole.fixed_size() {
            assert_eq!(fixed, to);
        }
    }
}

/// Every layout, dtype and width holds the same numbers, mirrored or not.
#[test]
fn outputs() {
    let mut worker = Worker::new();
    for (width, mirrored) in (1..70).flat_map(|width| [(width, true), (width, false)]) {
        let bytes: Vec<u8> = (0..=255).cycle().skip(width).take(width * 2 * 3).collect();
        let image = Size::new(u32::try_from(width).unwrap(), 2);
        let view = View::new(&bytes, width, 2, 3);
        let base = ImageTransform::new(Channels::Rgb)
            .unwrap()
            .step(Step::HorizontalFlip(1.0))
            .unwrap();
        let mut make = |output: Output| {
            let transform = base.clone().output(output).unwrap();
            let mut out = vec![0_u32; transform.bytes(image).div_ceil(4)];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
            let bytes = &mut bytes[..transform.bytes(image)];
            worker
                .run(&transform, Source::Pixels(view), image, &[Drawn::Done(mirrored)], bytes)
                .unwrap();
            bytes.to_vec()
        };
        let values = (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]);
        for (layout, scale, normalise) in [
            (Layout::Planes, Scale::Divide, true),
            (Layout::Pixels, Scale::Divide, true),
            (Layout::Planes, Scale::Multiply, false),
            (Layout::Planes, Scale::Keep, true),
            (Layout::Planes, Scale::Divide, false),
        ] {
            let same = make(Output {
                layout,
                ..Output::default()
            });
            let float = make(Output {
                dtype: DType::F32,
                layout,
                scale,
                normalise: normalise.then(|| values.clone()),
            });
            let half = make(Output {
                dtype: DType::BF16,
                layout,
                scale,
                normalise: normalise.then(|| values.clone()),
            });
            for (y, x, c) in (0..2).flat_map(|y| (0..width).flat_map(move |x| (0..3).map(move |c| (y, x, c)))) {
                let at = if layout == Layout::Planes {
                    (c * 2 + y) * width + x
                } else {
                    (y * width + x) * 3 + c
                };
                let byte = bytes[(y * width + if mirrored { width - 1 - x } else { x }) * 3 + c];
                assert_eq!(same[at], byte);
                let mut expected = f32::from(byte);
                match scale {
                    Scale::Keep => {}
                    Scale::Divide => expected /= 255.0,
                    Scale::Multiply => expected *= 1.0 / 255.0,
                }
                if normalise {
                    expected = (expected - values.0[c]) / values.1[c];
                }
                let found = f32::from_le_bytes(float[at * 4..at * 4 + 4].try_into().unwrap());
                assert_eq!(found.to_bits(), expected.to_bits(), "{width} {layout:?} {scale:?}");
                let bits = found.to_bits();
                let rounded = bits + 0x7fff + ((bits >> 16) & 1);
                assert_eq!(half[at * 2..at * 2 + 2], rounded.to_le_bytes()[2..]);
            }
        }
    }
}

/// The distribution of crops is torchvision's: areas and ratios, and where they lie.
#[test]
fn crops_fit_and_are_keyed() {
    let transform = ImageTransform::new(Channels::Rgb)
        .unwrap()
        .step(Step::RandomResizedCrop {
            size: Size::new(8, 8),
            scale: (0.08, 1.0),
            ratio: (0.75, 4.0 / 3.0),
            filter: Filter::Bilinear,
        })
        .unwrap();
    let image = Size::new(500, 375);
    let draw = |position| {
        let key = Key {
            seed: 1,
            position,
            ..Key::default()
        };
        match transform.draw(image, key).unwrap()[..] {
            [Drawn::Crop(rect)] => rect,
            ref other => panic!("{other:?}"),
        }
    };
    let mut shares = 0.0;
    for position in 0..4000 {
        let rect: Rect = draw(position);
        assert_eq!(rect, draw(position));
        assert!(rect.width > 0 && rect.x + rect.width <= 500 && rect.height > 0 && rect.y + rect.height <= 375);
        let ratio = f64::from(rect.width) / f64::from(rect.height);
        assert!((0.73..1.36).contains(&ratio), "{rect:?}");
        shares += f64::from(rect.width) * f64::from(rect.height) / (500.0 * 375.0);
    }
    // Large ones fit less often, so that the mean lies below 0.54.
    assert!((0.42..0.5).contains(&(shares / 4000.0)), "{}", shares / 4000.0);
    assert_ne!(draw(0), draw(1));
}

#[test]
fn a_definition_says_what_is_wrong() {
    let start = || ImageTransform::new(Channels::Rgb).unwrap();
    let wrong = [
        start().step(Step::HorizontalFlip(1.5)).unwrap_err(),
        start().step(Step::CenterCrop(Size::new(0, 3))).unwrap_err(),
        start().step(Step::Grayscale(2)).unwrap_err(),
        ImageTransform::new(Channels::AsStored).unwrap_err(),
        start()
            .output(Output {
                dtype: DType::F32,
                normalise: Some((vec![0.5; 2], vec![0.5; 3])),
                ..Output::default()
            })
            .unwrap_err(),
        start()
            .output(Output {
                normalise: Some((vec![0.5], vec![0.5])),
                ..Output::default()
            })
            .unwrap_err(),
    ];
    for error in wrong {
        assert!(matches!(error, TransformError::Definition(_)), "{error}");
    }
    let crop = start()
        .step(Step::RandomCrop {
            size: Size::new(9, 9),
            padding: None,
            if_needed: None,
        })
        .unwrap();
    let error = crop.size_of(Size::new(8, 20)).unwrap_err();
    assert!(
        error.to_string().contains("9x9") && error.to_string().contains("8x20"),
        "{error}"
    );
}
