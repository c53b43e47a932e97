//! Archives that are right, odd and bad.

use proptest::prelude::*;

use super::*;
use crate::batch::Value;
use crate::source::{Mark, Record};

/// Writes members without any library, so that everything can be got wrong.
#[derive(Default, Clone)]
pub(super) struct Maker(Vec<u8>);

impl Maker {
    pub(super) fn header(&mut self, name: &[u8], size: u64, kind: u8) -> &mut Self {
        let mut block = [0; 512];
        let name = &name[..name.len().min(100)];
        block[..name.len()].copy_from_slice(name);
        block[100..107].copy_from_slice(b"0000644");
        block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        Self::sum(&mut block);
        self.0.extend_from_slice(&block);
        self
    }

    fn sum(block: &mut [u8; 512]) {
        block[148..156].copy_from_slice(b"        ");
        let sum: u64 = block.iter().copied().map(u64::from).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    pub(super) fn body(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        let padded = self.0.len().next_multiple_of(512);
        self.0.resize(padded, 0);
        self
    }

    pub(super) fn file(&mut self, name: &str, bytes: &[u8]) -> &mut Self {
        self.header(name.as_bytes(), bytes.len() as u64, b'0').body(bytes)
    }

    fn pax(&mut self, records: &[(&str, &str)]) -> &mut Self {
        let mut body = Vec::new();
        for (key, value) in records {
            let bare = key.len() + value.len() + 3;
            let mut length = bare + 1;
            while bare + length.to_string().len() != length {
                length += 1;
            }
            body.extend_from_slice(format!("{length} {key}={value}\n").as_bytes());
        }
        self.header(b"pax", body.len() as u64, b'x').body(&body)
    }

    pub(super) fn end(&mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0.clone()
    }

    fn bare(&mut self) -> Vec<u8> {
        self.0.clone()
    }
}

pub(super) fn tar(bytes: Vec<u8>) -> Tar {
    Tar::of([Blob::memory("t.tar", bytes)]).url(false)
}

pub(super) fn read(tar: &Tar) -> Vec<Result<Record, SourceError>> {
    let mut reader = match tar.open(0, None) {
        Ok(reader) => reader,
        Err(error) => return vec![Err(error)],
    };
    let mut all = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(record)) => all.push(Ok(record)),
            Ok(None) => return all,
            Err(error) => {
                let go_on = error.may_continue();
                all.push(Err(error));
                if !go_on {
                    return all;
                }
            }
        }
    }
}

/// `key field=text field=text`, or the error's kind.
fn lines(tar: &Tar) -> Vec<String> {
    let line = |record: Record| {
        let mut line = record.key.unwrap();
        let Value::Map(pairs) = record.value else { panic!() };
        for (name, value) in pairs {
            match value {
                Value::Bytes(bytes) => line = format!("{line} {name}={}", String::from_utf8_lossy(&bytes)),
                Value::Str(text) if name == "__key__" => assert!(line.starts_with(&text)),
                other => panic!("{other:?}"),
            }
        }
        line
    };
    let show = |record: Result<Record, SourceError>| match record {
        Ok(record) => line(record),
        Err(error) => format!("{:?}", error.fault()),
    };
    read(tar).into_iter().map(show).collect()
}

fn two() -> Maker {
    let mut maker = Maker::default();
    maker
        .file("a.jpg", b"1")
        .file("a.cls", b"2")
        .file("b.JPG", b"3")
        .file("b.cls", b"4");
    maker
}

#[test]
fn samples_are_members_of_one_key() {
    let tar = tar(two().end());
    assert_eq!(lines(&tar), ["a jpg=1 cls=2", "b jpg=3 cls=4"]);
    let mut reader = tar.open(0, None).unwrap();
    assert_eq!(reader.mark(), Mark::default());
    assert_eq!(reader.skip(1).unwrap(), 1);
    let mark = reader.mark();
    assert_eq!(
        mark,
        Mark {
            number: 1,
            offset: 2048
        }
    );
    let record = reader.next().unwrap().unwrap();
    assert_eq!((record.mark, record.key.as_deref()), (mark, Some("b")));
    assert_eq!((reader.next().unwrap(), reader.skip(5).unwrap()), (None, 0));
    let mut again = tar.open(0, Some(mark)).unwrap();
    assert_eq!(again.next().unwrap().unwrap(), record);
    assert_eq!(tar.index().unwrap().as_ref(), [2]);
}

#[test]
fn fields_are_chosen() {
    let mut maker = two();
    maker.file("c.png", b"5").file("c.cls", b"6").file("d.txt", b"7");
    let bytes = maker.end();
    assert_eq!(
        lines(&tar(bytes.clone()).fields(["image=jpg;png"])),
        ["a image=1", "b image=3", "c image=5", "Absent"]
    );
    let leave = tar(bytes.clone()).fields([".CLS"]).missing(Missing::Leave);
    assert_eq!(lines(&leave), ["a cls=2", "b cls=4", "c cls=6", "d"]);
    let skip = tar(bytes).fields(["jpg"]).missing(Missing::Skip);
    assert_eq!(lines(&skip), ["a jpg=1", "b jpg=3"]);
    assert_eq!(skip.notes().incomplete, 2);
    assert_eq!(skip.index().unwrap().as_ref(), [2]);
}

#[test]
fn names_that_are_no_data_are_passed_over() {
    let mut maker = Maker::default();
    maker
        .file("._a.jpg", b"junk")
        .file("a.jpg", b"1")
        .file("a.cls", b"1")
        .file("./b.jpg", b"2")
        .file("./b.cls", b"2");
    maker
        .file(".DS_Store", b"z")
        .file("__MACOSX/._a.jpg", b"j")
        .file("noext", b"z")
        .header(b"d/", 0, b'5');
    maker.header(b"link.jpg", 77, b'2').file("__meta__/x.json", b"{}");
    let tar = tar(maker.end());
    assert_eq!(lines(&tar), ["a jpg=1 cls=1", "b jpg=2 cls=2"]);
    let notes = tar.notes();
    assert_eq!((notes.hidden, notes.unnamed, notes.no_files), (4, 1, 2));
    let whole = Tar::of([Blob::memory("t", maker.end())])
        .grouping(Grouping::Whole)
        .url(false);
    assert_eq!(lines(&whole).len(), 5);
    assert_eq!(lines(&whole)[4], "noext bytes=z");
}

#[test]
fn a_field_that_comes_twice() {
    let mut maker = Maker::default();
    maker
        .file("0.jpg", b"1")
        .file("0.txt", b"1")
        .file("0.JPG", b"22")
        .file("1.jpg", b"1");
    let bytes = maker.end();
    assert_eq!(lines(&tar(bytes.clone())), ["Record", "1 jpg=1"]);
    let error = read(&tar(bytes.clone())).remove(0).unwrap_err();
    assert_eq!(error.to_string(), "t.tar, 0.JPG, byte 2048: the sample has jpg twice");
    let first = tar(bytes.clone()).duplicates(Duplicates::First);
    assert_eq!(lines(&first), ["0 jpg=1 txt=1", "1 jpg=1"]);
    let last = tar(bytes).duplicates(Duplicates::Last);
    assert_eq!(lines(&last), ["0 jpg=22 txt=1", "1 jpg=1"]);
}

#[test]
fn files_that_do_not_lie_together() {
    let mut maker = Maker::default();
    maker
        .file("0.a", b"1")
        .file("1.a", b"2")
        .file("0.b", b"3")
        .file("1.b", b"4");
    let bytes = maker.end();
    assert_eq!(lines(&tar(bytes.clone())), ["0 a=1", "1 a=2", "Record", "Record"]);
    assert_eq!(lines(&tar(bytes.clone()).repeats(true)).len(), 4);
    let scattered = tar(bytes).grouping(Grouping::Scattered);
    assert_eq!(lines(&scattered), ["0 a=1 b=3", "1 a=2 b=4"]);
    assert_eq!(scattered.index().unwrap().as_ref(), [2]);
    let mut reader = scattered.open(0, None).unwrap();
    assert_eq!(reader.skip(1).unwrap(), 1);
    let mark = reader.mark();
    let key = reader.next().unwrap().unwrap().key;
    assert_eq!(key.as_deref(), Some("1"));
    assert_eq!(scattered.open(0, Some(mark)).unwrap().next().unwrap().unwrap().key, key);
}

#[test]
fn dots() {
    let mut maker = Maker::default();
    maker
        .file("v1.0/Track 2.0 (x).mp3", b"1")
        .file("v1.0/Track 2.1 (y).mp3", b"2")
        .file("a/b.seg.png", b"3");
    let bytes = maker.end();
    let first = tar(bytes.clone());
    assert_eq!(lines(&first), ["v1.0/Track 2 0 (x).mp3=1 1 (y).mp3=2", "a/b seg.png=3"]);
    assert_eq!(first.notes().odd_fields, 2);
    assert_eq!(first.notes().odd_field.as_deref(), Some("v1.0/Track 2.0 (x).mp3"));
    let last = tar(bytes).split(Split::LastDot);
    assert_eq!(
        lines(&last),
        ["v1.0/Track 2.0 (x) mp3=1", "v1.0/Track 2.1 (y) mp3=2", "a/b.seg png=3"]
    );
}

/// Every cut of an archive gives samples that are whole, or an error.
#[test]
fn every_cut_is_seen() {
    let mut maker = Maker::default();
    for i in 0..4 {
        for field in ["cls", "jpg"] {
            maker.file(&format!("{i}.{field}"), &[b'x'; 700]);
        }
    }
    let bytes = maker.end();
    let whole = lines(&tar(bytes.clone()));
    assert_eq!(whole.len(), 4);
    let data = bytes.len() - 1024;
    let near = (0..=bytes.len()).filter(|cut| cut % 13 == 0 || (cut + 2) % 512 < 4);
    for cut in near {
        let got = lines(&tar(bytes[..cut].to_vec()));
        if cut >= data {
            // Zeros at the end.
            assert_eq!(got, whole, "{cut}");
        } else {
            let (last, before) = got.split_last().unwrap();
            let sample = 2 * (512 + 1024);
            // At a border between samples nothing can be known to be missing.
            let complete = cut / sample;
            if cut > sample && cut.is_multiple_of(sample) {
                assert_eq!(got, whole[..complete], "{cut}");
            } else {
                assert_eq!(last, "Truncated", "{cut}");
                assert_eq!(before, &whole[..before.len()], "{cut}");
                assert!(before.len() <= complete, "{cut}");
            }
        }
    }
    let error = read(&tar(bytes[..4000].to_vec())).pop().unwrap().unwrap_err();
    assert_eq!(error.offset(), Some(4000));
    assert!(error.message().contains("the last whole sample is 0"), "{error}");
    let strict = tar(bytes[..data].to_vec()).end_mark(EndMark::Required);
    assert_eq!(lines(&strict).last().unwrap(), "Truncated");
    let short = tar(bytes[..2 * 3072 - 100].to_vec());
    let error = read(&short).pop().unwrap().unwrap_err();
    assert!(error.message().contains("ends within the last block"), "{error}");
    let told = lines(&tar(bytes[..2 * 3072 - 100].to_vec()).end_mark(EndMark::Optional));
    assert_eq!(told, whole[..2]);
    let one = bytes[..512 + 1024].to_vec();
    assert_eq!(lines(&tar(one.clone())), ["Truncated"]);
    let error = read(&tar(one.clone())).pop().unwrap().unwrap_err();
    assert!(error.message().contains("say so with end_mark \"optional\""), "{error}");
    assert_eq!(lines(&tar(one).end_mark(EndMark::Optional)).len(), 1);
}

#[test]
fn an_archive_without_zeros_is_the_same_from_a_mark() {
    let mut maker = two();
    let bytes = maker.bare();
    let mark = Mark {
        number: 1,
        offset: 2048,
    };
    let whole = tar(bytes.clone());
    assert_eq!(
        whole
            .open(0, Some(mark))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .key
            .as_deref(),
        Some("b")
    );
    let cut = tar(bytes[..bytes.len() - 1024].to_vec());
    let fault = cut.open(0, Some(mark)).unwrap().next().unwrap_err().fault();
    assert_eq!((fault, lines(&cut)[1].as_str()), (Fault::Truncated, "Truncated"));
}

#[test]
fn concatenated_archives() {
    let mut bytes = two().end();
    let mut more = Maker::default();
    bytes.extend(more.file("c.jpg", b"5").file("c.cls", b"6").end());
    assert_eq!(lines(&tar(bytes.clone())).len(), 2);
    assert_eq!(lines(&tar(bytes.clone()).past_end(true)).len(), 3);
    let indexed = tar(bytes).past_end(true).with_index(IndexAt::Memory);
    assert_eq!(indexed.index().unwrap().as_ref(), [3]);
    let mut reader = indexed.open(0, None).unwrap();
    assert_eq!(reader.skip(2).unwrap(), 2);
    assert_eq!(reader.next().unwrap().unwrap().key.as_deref(), Some("c"));
}

#[test]
fn pax_overrides_the_header() {
    let mut maker = Maker::default();
    let long = "d/".repeat(200) + "é.txt";
    maker
        .pax(&[("path", &long), ("size", "3"), ("mtime", "1.5")])
        .header(b"short", 1, b'0')
        .body(b"abc");
    maker.header(b"g", 15, b'g').body(b"15 comment=abc\n");
    maker.file("b.txt", b"x");
    assert_eq!(
        lines(&tar(maker.end())),
        [format!("{} txt=abc", &long[..long.len() - 4]), "b txt=x".into()]
    );
    let mut global = Maker::default();
    global.header(b"g", 9, b'g').body(b"9 size=3\n").file("b.txt", b"x");
    assert_eq!(lines(&tar(global.end())), ["Unsupported"]);
}

#[test]
fn limits() {
    let mut maker = Maker::default();
    maker.file("a.bin", &[1; 600]).file("a.cls", b"1").file("b.cls", b"2");
    let tar = tar(maker.end()).max_sample_bytes(100);
    assert_eq!(lines(&tar), ["TooLarge", "b cls=2"]);
    let error = tar.open(0, None).unwrap().next().unwrap_err();
    assert!(
        error
            .message()
            .ends_with("has 600: raise max_sample_bytes if that is right"),
        "{error}"
    );
    // What a header claims is not set aside.
    let mut huge = Maker::default();
    huge.header(b"a.bin", 0o77_777_777_777, b'0').body(b"abc");
    let tar = super::tests::tar(huge.end()).max_sample_bytes(u64::MAX);
    assert_eq!(lines(&tar), ["Truncated"]);
    let mut long = Maker::default();
    long.header(b"l", 0o77_777_777_777, b'L').body(b"abc");
    assert_eq!(lines(&super::tests::tar(long.end())), ["Damaged"]);
}

#[test]
fn hostile_holes() {
    for (records, fault) in [
        (
            &[("GNU.sparse.size", "99999999999999999"), ("GNU.sparse.map", "0,3")][..],
            "TooLarge",
        ),
        (&[("GNU.sparse.size", "10"), ("GNU.sparse.map", "5,2,5,1")], "Record"),
        (&[("GNU.sparse.size", "10"), ("GNU.sparse.map", "9,3")], "Record"),
        (&[("GNU.sparse.size", "10"), ("GNU.sparse.map", "1,2")], "Record"),
        (&[("GNU.sparse.map", "1,2")], "Damaged"),
        (
            &[("GNU.sparse.size", "10"), ("GNU.sparse.map", "18446744073709551615,3")],
            "Record",
        ),
    ] {
        let mut maker = Maker::default();
        maker.pax(records).file("a.bin", b"abc").file("b.bin", b"x");
        let got = lines(&tar(maker.end()));
        assert_eq!(got[0], fault, "{records:?}");
        if fault != "Damaged" {
            assert_eq!(got[1], "b bin=x");
        }
    }
    let mut maker = Maker::default();
    maker
        .pax(&[("GNU.sparse.size", "10"), ("GNU.sparse.map", "1,2,8,1")])
        .file("a.bin", b"abc");
    assert_eq!(lines(&tar(maker.end())), ["a bin=\0ab\0\0\0\0\0c\0"]);
}

#[test]
fn an_index_finds_samples_by_number() {
    let mut maker = Maker::default();
    for i in 0..50 {
        maker
            .file(&format!("d/{i:02}.bin"), &vec![b'x'; i * 300])
            .file(&format!("d/{i:02}.cls"), b"1");
    }
    let folder = std::env::temp_dir().join(format!("feedrate-index-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let shard = folder.join("a.tar");
    std::fs::write(&shard, maker.end()).unwrap();
    for at in [
        IndexAt::Memory,
        IndexAt::Beside,
        IndexAt::Folder(folder.join("cache")),
        IndexAt::Beside,
    ] {
        let tar = Tar::new([shard.to_str().unwrap()]).with_index(at);
        assert!(tar.indexed());
        assert_eq!(tar.index().unwrap().as_ref(), [50]);
        assert_eq!(tar.parts().unwrap()[0].records, Some(50));
        let all: Vec<Record> = read(&tar).into_iter().map(Result::unwrap).collect();
        for number in [49, 0, 25, 1] {
            let mut reader = tar.open(0, None).unwrap();
            assert_eq!(reader.skip(number).unwrap(), number);
            assert_eq!(reader.next().unwrap().unwrap(), all[usize::try_from(number).unwrap()]);
        }
        let mut reader = tar.open(0, None).unwrap();
        assert_eq!((reader.skip(99).unwrap(), reader.next().unwrap()), (50, None));
        // By the number alone, in a new reader and in one that has been elsewhere, also where it has been before.
        for (number, record) in (1..).zip(&all[1..]) {
            for offset in [0, 512] {
                let mut begun = tar.open(0, Some(Mark { number, offset })).unwrap();
                assert_eq!(begun.next().unwrap().as_ref(), Some(record));
            }
        }
        for number in [49_u8, 3, 3, 4, 25, 0, 49, 50, 7] {
            assert!(reader.seek(number.into()).unwrap());
            assert_eq!(reader.mark().number, u64::from(number));
            assert_eq!(reader.next().unwrap().as_ref(), all.get(usize::from(number)));
        }
    }
    // A bad index, and one of an archive that was changed, is made again.
    let beside = folder.join("a.tar.feedrate-index");
    let stored = std::fs::read(&beside).unwrap();
    std::fs::write(&beside, &stored[..stored.len() / 2]).unwrap();
    let tar = Tar::new([shard.to_str().unwrap()]).with_index(IndexAt::Beside);
    assert_eq!(tar.index().unwrap().as_ref(), [50]);
    assert_eq!(std::fs::read(&beside).unwrap(), stored);
    std::fs::write(&shard, two().end()).unwrap();
    let tar = Tar::new([shard.to_str().unwrap()]).with_index(IndexAt::Beside);
    assert_eq!(tar.index().unwrap().as_ref(), [2]);
    std::fs::remove_dir_all(&folder).unwrap();
}

proptest! {
    #[test]
    fn marks_give_the_rest(sizes in proptest::collection::vec((0_usize..3, 0_usize..2000), 1..12), seek in 0_usize..12) {
        let mut maker = Maker::default();
        for (i, (fields, size)) in sizes.iter().enumerate() {
            for field in 0..=*fields {
                maker.file(&format!("{i}.f{field}"), &vec![b'a'; *size]);
            }
        }
        let tar = tar(maker.end());
        let all: Vec<Record> = read(&tar).into_iter().map(Result::unwrap).collect();
        prop_assert_eq!(all.len(), sizes.len());
        let seek = seek.min(sizes.len());
        let mut reader = tar.open(0, None).unwrap();
        for _ in 0..seek {
            reader.next().unwrap();
        }
        let mark = reader.mark();
        let mut skipped = tar.open(0, None).unwrap();
        prop_assert_eq!(skipped.skip(seek as u64).unwrap(), seek as u64);
        prop_assert_eq!(skipped.mark(), mark);
        let mut rest = tar.open(0, Some(mark)).unwrap();
        for record in &all[seek..] {
            prop_assert_eq!(&rest.next().unwrap().unwrap(), record);
            prop_assert_eq!(&skipped.next().unwrap().unwrap(), record);
        }
        prop_assert!(rest.next().unwrap().is_none());
    }
}

#[test]
fn an_empty_file_is_no_archive_and_zeros_are_one() {
    let error = tar(Vec::new()).open(0, None).unwrap().next().unwrap_err();
    assert_eq!((error.fault(), error.offset()), (Fault::Truncated, Some(0)));
    assert!(error.message().contains("the file is empty"), "{error}");
    assert!(
        tar(Vec::new())
            .with_index(IndexAt::Memory)
            .parts()
            .and_then(|_| tar(Vec::new()).open(0, None)?.skip(1))
            .is_err()
    );
    assert!(lines(&tar(Vec::new()).end_mark(EndMark::Optional)).is_empty());
    assert!(lines(&tar(vec![0; 1024])).is_empty());
}

#[test]
fn an_index_is_given_up_when_asked_and_made_later() {
    let mut maker = Maker::default();
    for at in 0..2100 {
        maker.file(&format!("{at}.x"), b"");
    }
    let bytes = maker.end();
    for grouping in [Grouping::Consecutive, Grouping::Scattered] {
        let source = tar(bytes.clone()).grouping(grouping).with_index(IndexAt::Memory);
        let error = crate::asking::asking(|| false, || source.index()).unwrap_err();
        assert_eq!(error.fault(), Fault::Interrupted);
        assert_eq!(*source.index().unwrap(), [2100]);
    }
}
