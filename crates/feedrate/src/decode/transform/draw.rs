//! Random parameters: their distributions are torchvision's.

use super::{ImageTransform, Size, Span, Step, Target, TransformError, geometry};
use crate::decode::Rect;
use crate::random::{Key, Keyed};

/// What was drawn for one random step.
#[derive(Debug, Clone, PartialEq)]
pub enum Drawn {
    /// Of a random resized crop.
    Crop(Rect),
    /// The upper left corner of a random crop, in the padded image.
    Corner(u32, u32),
    /// Whether it is done.
    Done(bool),
    /// Of colour jitter; `None` when it is not done.
    Jitter(Option<Jitter>),
}

/// Factors and their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Jitter {
    /// 0 brightness, 1 contrast, 2 saturation, 3 hue; each once.
    pub order: [u8; 4],
    /// By those numbers; `None` for those that are not done.
    pub factors: [Option<f64>; 4],
}

/// Most attempts at a rectangle that fits.
const ATTEMPTS: usize = 10;

fn definition(message: String) -> TransformError {
    TransformError::Definition(message)
}

fn chance(step: &str, chance: f64) -> Result<(), TransformError> {
    if (0.0..=1.0).contains(&chance) {
        return Ok(());
    }
    Err(definition(format!(
        "the chance of {step} lies between 0 and 1, but got {chance}"
    )))
}

fn span(name: &str, span: Span, from: f64, to: f64) -> Result<(), TransformError> {
    match span {
        Some((a, b)) if !(from <= a && a <= b && b <= to) => Err(definition(format!(
            "{name} is drawn from a span within {from} and {to}, but got {a} to {b}"
        ))),
        _ => Ok(()),
    }
}

/// Whether a step means something where there are so many channels.
pub(super) fn check(step: &Step, channels: usize) -> Result<(), TransformError> {
    let sized = |size: Size| {
        if size.width == 0 || size.height == 0 {
            return Err(definition(format!("a size has at least 1 x 1 pixels, but got {size}")));
        }
        Ok(())
    };
    match step {
        Step::RandomResizedCrop { size, scale, ratio, .. } => {
            sized(*size)?;
            if !(0.0 < scale.0 && scale.0 <= scale.1 && scale.1.is_finite()) {
                return Err(definition(format!(
                    "scale goes from a share above 0 to a larger one, but got {scale:?}"
                )));
            }
            if !(0.0 < ratio.0 && ratio.0 <= ratio.1 && ratio.1.is_finite()) {
                return Err(definition(format!(
                    "ratio goes from a number above 0 to a larger one, but got {ratio:?}"
                )));
            }
            Ok(())
        }
        Step::Resize { to, .. } => match to {
            Target::Short { size, most } => {
                if let Some(most) = most.filter(|most| most <= size) {
                    return Err(definition(format!(
                        "the longer side's limit must be greater than the shorter side's size: {most} is not above {size}"
                    )));
                }
                sized(Size::new(*size, *size))
            }
            Target::Exact(size) | Target::Fit(size) | Target::Letterbox(size, _) => sized(*size),
        },
        Step::CenterCrop(size) | Step::RandomCrop { size, .. } => sized(*size),
        Step::HorizontalFlip(p) | Step::VerticalFlip(p) => chance("a flip", *p),
        Step::ColorJitter {
            brightness,
            contrast,
            saturation,
            hue,
            chance: p,
        } => {
            span("brightness", *brightness, 0.0, f64::MAX)?;
            span("contrast", *contrast, 0.0, f64::MAX)?;
            span("saturation", *saturation, 0.0, f64::MAX)?;
            span("hue", *hue, -0.5, 0.5)?;
            if channels == 4 {
                return Err(definition(
                    "colour jitter is for RGB and gray images: decode to RGB".into(),
                ));
            }
            p.map_or(Ok(()), |p| chance("colour jitter", p))
        }
        Step::Grayscale(to) if !matches!(to, 1 | 3) => {
            Err(definition(format!("grayscale gives 1 or 3 channels, not {to}")))
        }
        Step::Grayscale(_) | Step::RandomGrayscale(_) if channels == 4 => {
            Err(definition("grayscale is for RGB and gray images: decode to RGB".into()))
        }
        Step::Grayscale(_) | Step::Pad(_) => Ok(()),
        Step::RandomGrayscale(p) => chance("random grayscale", *p),
    }
}

fn within(stream: &mut Keyed, (a, b): (f64, f64)) -> f64 {
    a + (b - a) * stream.uniform()
}

/// A place in `0..=most`.
fn place(stream: &mut Keyed, most: u32) -> u32 {
    u32::try_from(stream.below(u64::from(most) + 1)).unwrap_or(most)
}

/// A rectangle of a random area and ratio; after ten that do not fit, the largest one in the middle whose ratio is allowed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded sizes, which were compared with the image's"
)]
fn crop(stream: &mut Keyed, image: Size, scale: (f64, f64), ratio: (f64, f64)) -> Rect {
    let (width, height) = (f64::from(image.width), f64::from(image.height));
    let logs = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..ATTEMPTS {
        let area = width * height * within(stream, scale);
        let ratio = within(stream, logs).exp();
        let w = (area * ratio).sqrt().round_ties_even();
        let h = (area / ratio).sqrt().round_ties_even();
        if 0.0 < w && w <= width && 0.0 < h && h <= height {
            let (w, h) = (w as u32, h as u32);
            let y = place(stream, image.height - h);
            let x = place(stream, image.width - w);
            return Rect::new(x, y, w, h);
        }
    }
    let (mut w, mut h) = (image.width, image.height);
    if width / height < ratio.0 {
        h = ((width / ratio.0).round_ties_even() as u32).clamp(1, image.height);
    } else if width / height > ratio.1 {
        w = ((height * ratio.1).round_ties_even() as u32).clamp(1, image.width);
    }
    Rect::new((image.width - w) / 2, (image.height - h) / 2, w, h)
}

impl ImageTransform {
    /// The parameters of all random steps for an image of this size. `key` is that of the sample; the number of a step is put in the low half of
    /// its `step`, so that another step does not change what the others draw.
    ///
    /// # Errors
    /// As [`size_of`](ImageTransform::size_of).
    pub fn draw(&self, image: Size, key: Key) -> Result<Vec<Drawn>, TransformError> {
        let mut size = image;
        let mut drawn = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            if step.is_random() {
                let mut stream = Key {
                    step: (key.step << 32) | number as u64,
                    ..key
                }
                .stream();
                drawn.push(one(step, &mut stream, size)?);
            }
            size = geometry::after(step, size)?;
        }
        Ok(drawn)
    }
}

impl ImageTransform {
    /// The size that each random step chooses from, for an image of this size: for a random crop that of the padded image.
    ///
    /// # Errors
    /// As [`size_of`](ImageTransform::size_of).
    pub fn choices(&self, image: Size) -> Result<Vec<Size>, TransformError> {
        let mut size = image;
        let mut found = Vec::new();
        for step in &self.steps {
            match step {
                Step::RandomCrop {
                    size: wanted,
                    padding,
                    if_needed,
                } => found.push(geometry::padded_for(size, *wanted, padding.as_ref(), *if_needed)?),
                step if step.is_random() => found.push(size),
                _ => {}
            }
            size = geometry::after(step, size)?;
        }
        Ok(found)
    }
}

fn one(step: &Step, stream: &mut Keyed, size: Size) -> Result<Drawn, TransformError> {
    Ok(match step {
        Step::RandomResizedCrop { scale, ratio, .. } => Drawn::Crop(crop(stream, size, *scale, *ratio)),
        Step::RandomCrop {
            size: wanted,
            padding,
            if_needed,
        } => {
            let padded = geometry::padded_for(size, *wanted, padding.as_ref(), *if_needed)?;
            Drawn::Corner(
                place(stream, padded.width - wanted.width),
                place(stream, padded.height - wanted.height),
            )
        }
        Step::HorizontalFlip(chance) | Step::VerticalFlip(chance) | Step::RandomGrayscale(chance) => {
            Drawn::Done(stream.uniform() < *chance)
        }
        Step::ColorJitter {
            brightness,
            contrast,
            saturation,
            hue,
            chance,
        } => {
            if chance.is_some_and(|chance| stream.uniform() >= chance) {
                return Ok(Drawn::Jitter(None));
            }
            let mut order = [0, 1, 2, 3];
            stream.shuffle(&mut order);
            let factors = [brightness, contrast, saturation, hue].map(|span| span.map(|span| within(stream, span)));
            Drawn::Jitter(Some(Jitter { order, factors }))
        }
        _ => Drawn::Done(true),
    })
}
