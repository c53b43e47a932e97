//! What the pixels of a strip or tile are compressed by.

use std::io::Read;

use flate2::{Decompress, FlushDecompress, Status};

/// The memory that an xz decoder may take.
const XZ_MEMORY: u64 = 256 << 20;

/// Compressions that give bytes. JPEG is another matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Lzw,
    Deflate,
    PackBits,
    Zstd,
    Xz,
}

impl Compression {
    /// Up to `len` bytes; fewer where the data end or are damaged.
    pub(super) fn expand(self, data: &[u8], len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::None => out.extend_from_slice(&data[..len.min(data.len())]),
            Self::Lzw => lzw(data, len, &mut out),
            Self::Deflate => deflate(data, len, &mut out),
            Self::PackBits => pack_bits(data, len, &mut out),
            Self::Zstd => {
                if let Ok(decoder) = zstd::Decoder::with_buffer(data) {
                    let _ = decoder.take(len as u64).read_to_end(&mut out);
                }
            }
            Self::Xz => {
                if let Ok(stream) = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, 0) {
                    let decoder = liblzma::bufread::XzDecoder::new_stream(data, stream);
                    let _ = decoder.take(len as u64).read_to_end(&mut out);
                }
            }
        }
        out
    }
}

fn deflate(data: &[u8], len: usize, out: &mut Vec<u8>) {
    let mut zlib = Decompress::new(true);
    let mut buffer = vec![0; len.clamp(1, 64 << 10)];
    while out.len() < len {
        let (read, made) = (zlib.total_in(), zlib.total_out());
        let from = usize::try_from(read).unwrap_or(usize::MAX).min(data.len());
        let status = zlib.decompress(&data[from..], &mut buffer, FlushDecompress::None);
        let made = usize::try_from(zlib.total_out() - made).unwrap_or(0);
        out.extend_from_slice(&buffer[..made]);
        if !matches!(status, Ok(Status::Ok)) || (made == 0 && zlib.total_in() == read) {
            break;
        }
    }
    out.truncate(len);
}

fn pack_bits(data: &[u8], len: usize, out: &mut Vec<u8>) {
    let mut at = 0;
    while out.len() < len {
        let Some(&head) = data.get(at) else { break };
        at += 1;
        match head {
            0..=127 => {
                let end = (at + usize::from(head) + 1).min(data.len());
                out.extend_from_slice(&data[at.min(end)..end]);
                at = end;
            }
            128 => {}
            129.. => {
                let Some(&value) = data.get(at) else { break };
                at += 1;
                out.resize(out.len() + 257 - usize::from(head), value);
            }
        }
    }
    out.truncate(len);
}

/// LZW as TIFF has it: the highest bits first, and codes that grow one early.
fn lzw(data: &[u8], len: usize, out: &mut Vec<u8>) {
    const CLEAR: usize = 256;
    const END: usize = 257;
    const MOST: usize = 4096;
    // Each code is a piece of what was written before: where it begins, and its length.
    let mut table = vec![(0_usize, 0_usize); MOST];
    let (mut size, mut next) = (9_u32, 258_usize);
    let mut last: Option<(usize, usize)> = None;
    let (mut buffer, mut filled, mut at) = (0_u64, 0_u32, 0_usize);
    while out.len() < len {
        while filled < size {
            let Some(&byte) = data.get(at) else {
                return out.truncate(len);
            };
            buffer = (buffer << 8) | u64::from(byte);
            (filled, at) = (filled + 8, at + 1);
        }
        filled -= size;
        let code = usize::try_from((buffer >> filled) & ((1 << size) - 1)).unwrap_or(END);
        if code == CLEAR {
            (size, next, last) = (9, 258, None);
            continue;
        }
        if code == END {
            break;
        }
        let from = out.len();
        if code < CLEAR {
            out.push(u8::try_from(code).unwrap_or(0));
        } else {
            let (start, run) = match last {
                Some((start, run)) if code == next => (start, run + 1),
                Some(_) if code < next => table[code],
                _ => break,
            };
            // A piece may reach into itself by its last byte.
            let end = (start + run).min(from);
            out.extend_from_within(start..end);
            if end < start + run {
                out.push(out[start]);
            }
        }
        if let Some((start, run)) = last
            && next < MOST
        {
            table[next] = (start, run + 1);
            next += 1;
            if next + 1 >= 1 << size && size < 12 {
                size += 1;
            }
        }
        last = Some((from, out.len() - from));
    }
    out.truncate(len);
}

/// Undoes a predictor in rows of `row` bytes, in the byte order of the file; gives bytes in that order. `size` is the number
/// of bytes of a sample.
pub(super) fn unpredict(predictor: u64, data: &mut [u8], row: usize, samples: usize, size: usize, big: bool) -> bool {
    match (predictor, size) {
        (1, _) => {}
        (2, 1 | 2 | 4 | 8) => {
            for line in data.chunks_exact_mut(row) {
                difference(line, samples, size, big);
            }
        }
        (3, 2 | 4 | 8) => {
            let mut plain = vec![0; row];
            for line in data.chunks_exact_mut(row) {
                for i in samples..row {
                    line[i] = line[i].wrapping_add(line[i - samples]);
                }
                // Bytes of one significance lie together, the highest first.
                let count = row / size;
                for i in 0..count {
                    for byte in 0..size {
                        let to = if big { byte } else { size - 1 - byte };
                        plain[i * size + to] = line[byte * count + i];
                    }
                }
                line.copy_from_slice(&plain);
            }
        }
        _ => return false,
    }
    true
}

/// Sums up differences between neighbours.
fn difference(line: &mut [u8], samples: usize, size: usize, big: bool) {
    if size == 1 {
        for i in samples..line.len() {
            line[i] = line[i].wrapping_add(line[i - samples]);
        }
        return;
    }
    let step = samples * size;
    for at in (step..line.len()).step_by(size) {
        let mut carry = 0_u16;
        for byte in 0..size {
            // From the lowest byte to the highest.
            let i = at + if big { size - 1 - byte } else { byte };
            let sum = u16::from(line[i]) + u16::from(line[i - step]) + carry;
            [line[i], _] = sum.to_le_bytes();
            carry = sum >> 8;
        }
    }
}

/// Each byte with its bits the other way round.
pub(super) fn reversed(data: &[u8]) -> Vec<u8> {
    data.iter().map(|byte| byte.reverse_bits()).collect()
}

/// Whether a decoder of bytes exists.
pub(super) fn of(number: u64) -> Option<Compression> {
    Some(match number {
        1 => Compression::None,
        5 => Compression::Lzw,
        8 | 32_946 => Compression::Deflate,
        32_773 => Compression::PackBits,
        50_000 => Compression::Zstd,
        34_925 => Compression::Xz,
        _ => return None,
    })
}

/// What a compression that is not read is called.
pub(super) fn name(number: u64) -> &'static str {
    match number {
        2 => "CCITT 1D",
        3 => "CCITT group 3",
        4 => "CCITT group 4",
        6 => "old-style JPEG",
        32_809 => "ThunderScan",
        34_676 | 34_677 => "SGI Log",
        34_712 | 33_003 | 33_005 => "JPEG 2000",
        34_887 => "LERC",
        50_001 => "WebP",
        50_002 => "JPEG XL",
        _ => "an unknown one",
    }
}
