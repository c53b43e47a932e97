//! What the command-line tools compress.

use std::fs;

use feedrate::source::tar::IndexAt;
use feedrate::source::{Fault, Source, Tar};

use super::{Folder, bytes, drain, read_all};

const TOOLS: [(&str, &str); 5] = [
    ("gzip", "gz"),
    ("bzip2", "bz2"),
    ("xz", "xz"),
    ("zstd", "zst"),
    ("lz4", "lz4"),
];

fn shard(folder: &Folder) -> bool {
    let mut state = 1_u32;
    let mut noise = |length: usize| -> Vec<u8> {
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if state & 0x8000_0000 == 0 {
                    b'a'
                } else {
                    (state >> 24) as u8
                }
            })
            .collect()
    };
    for i in 0..20 {
        folder.write(&format!("d/{i:02}.bin"), noise(i * 997));
        folder.write(&format!("d/{i:02}.cls"), i.to_string());
    }
    folder.run("tar --sort=name -cf s.tar d")
}

#[test]
fn compressed_shards_are_read_whatever_their_name() {
    let folder = Folder::new();
    if !shard(&folder) {
        return;
    }
    let plain = read_all(&Tar::new([folder.at("s.tar")]).url(false)).unwrap();
    assert_eq!(plain.len(), 20);
    for (tool, ending) in TOOLS {
        // Two members, frames or streams, the border somewhere in a file.
        let split = "head -c 50001 s.tar > x; tail -c +50002 s.tar > y";
        if !folder.run(&format!("{tool} -c s.tar > one.tar"))
            || !folder.run(&format!(
                "{tool} --version >/dev/null; {split}; {tool} -c x > two.tar; {tool} -c y >> two.tar"
            ))
        {
            continue;
        }
        for name in ["one.tar", "two.tar"] {
            let tar = Tar::new([folder.at(name)]).url(false);
            assert_eq!(read_all(&tar).unwrap(), plain, "{tool} {name}");
            let mut reader = tar.open(0, None).unwrap();
            assert_eq!(reader.skip(13).unwrap(), 13);
            let mark = reader.mark();
            let mut again = tar.open(0, Some(mark)).unwrap();
            assert_eq!(again.next().unwrap().unwrap(), plain[13], "{tool} {ending}");
            assert_eq!(tar.index().unwrap().as_ref(), [20]);
            let error = tar.with_index(IndexAt::Memory).index().unwrap_err();
            assert_eq!(error.fault(), Fault::Unsupported);
            assert!(error.message().contains(tool), "{error}");
        }
    }
}

#[test]
fn cut_and_damaged_streams_are_errors() {
    let folder = Folder::new();
    if !shard(&folder) {
        return;
    }
    let plain = read_all(&Tar::new([folder.at("s.tar")]).url(false)).unwrap();
    for (tool, _) in TOOLS {
        if !folder.run(&format!("{tool} -c s.tar > whole")) {
            continue;
        }
        let whole = fs::read(folder.at("whole")).unwrap();
        let cuts = (8..whole.len())
            .step_by(9973)
            .chain(whole.len().saturating_sub(20)..whole.len());
        for cut in cuts {
            let tar = Tar::new([folder.write("cut.tar", &whole[..cut])]).url(false);
            let (records, error) = tar
                .open(0, None)
                .map_or_else(|error| (Vec::new(), Some(error)), |mut reader| drain(&mut *reader));
            let error = error.unwrap_or_else(|| panic!("{tool} cut at {cut} of {} gives no error", whole.len()));
            assert!(
                matches!(error.fault(), Fault::Truncated | Fault::Damaged),
                "{tool} {cut}: {error}"
            );
            assert_eq!(records, plain[..records.len()], "{tool} {cut}");
        }
        // A bit in the middle: what is checked by a sum is seen; nothing may be read as whole that is not. Some bits carry nothing: the
        // tools too give the same bytes as before. Which ones these are depends on the times in the archive.
        if tool != "lz4" {
            for at in (20..whole.len()).step_by(9001) {
                let mut bad = whole.clone();
                bad[at] ^= 0x10;
                let tar = Tar::new([folder.write("bad.tar", &bad)]).url(false);
                let (records, error) = tar
                    .open(0, None)
                    .map_or_else(|error| (Vec::new(), Some(error)), |mut reader| drain(&mut *reader));
                assert!(
                    error.is_some() || records == plain,
                    "{tool} with a wrong bit at {at} gives other bytes and no error"
                );
            }
        }
        let mut more = whole.clone();
        more.extend_from_slice(b"garbage behind");
        let (_, error) = drain(&mut *Tar::new([folder.write("more.tar", &more)]).open(0, None).unwrap());
        assert!(error.is_some(), "{tool}: garbage behind gives no error");
    }
}

#[test]
fn compressed_members() {
    let folder = Folder::new();
    folder.write("a.json", br#"{"k":1}"#);
    folder.write("a.cls", "3");
    if !folder.run("gzip -k a.json && tar -cf j.tar a.json.gz a.cls") {
        return;
    }
    let all = read_all(&Tar::new([folder.at("j.tar")])).unwrap();
    assert_eq!(bytes(&all[0], "json.gz")[..2], [0x1f, 0x8b]);
    let all = read_all(&Tar::new([folder.at("j.tar")]).decompress(true)).unwrap();
    assert_eq!(bytes(&all[0], "json.gz"), br#"{"k":1}"#);
    assert_eq!(bytes(&all[0], "cls"), b"3");
    let error = read_all(&Tar::new([folder.at("j.tar")]).decompress(true).max_sample_bytes(30)).unwrap_err();
    assert_eq!(error.fault(), Fault::TooLarge);
    assert!(error.message().contains("raise max_sample_bytes"), "{error}");
}
