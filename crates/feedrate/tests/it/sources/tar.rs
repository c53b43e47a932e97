//! Archives of GNU tar.

use std::fs;

use feedrate::source::Tar;
use feedrate::source::tar::{Grouping, Names};

use super::{Folder, bytes, read_all};

#[test]
fn all_formats_give_the_same_samples() {
    let folder = Folder::new();
    for i in 0..20 {
        folder.write(&format!("d/{i:02}.bin"), vec![b'a' + i; usize::from(i) * 401]);
        folder.write(&format!("d/{i:02}.cls"), i.to_string());
    }
    folder.run("ln -s 00.bin d/98.bin; ln d/00.bin d/99.bin");
    for format in ["v7", "oldgnu", "gnu", "ustar", "pax"] {
        for blocks in ["-b20", "-b1"] {
            let tar = format!("tar --sort=name {blocks} --format={format} -cf {format}{blocks}.tar d");
            if !folder.run(&tar) {
                return;
            }
            let tar = Tar::new([folder.at(&format!("{format}{blocks}.tar"))]);
            let all = read_all(&tar).unwrap();
            assert_eq!(all.len(), 20, "{format}");
            for (i, record) in all.iter().enumerate() {
                assert_eq!(record.key.as_deref(), Some(&*format!("d/{i:02}")));
                assert_eq!(bytes(record, "bin"), vec![b'a' + u8::try_from(i).unwrap(); i * 401]);
                assert_eq!(bytes(record, "cls"), i.to_string().as_bytes());
            }
            assert_eq!(tar.notes().no_files, 3, "{format}");
        }
    }
}

#[test]
fn long_names_stay_whole() {
    let folder = Folder::new();
    let lengths = [90, 98, 99, 100, 101, 102, 155, 156, 200, 255, 256, 257, 1000, 3000];
    let mut keys: Vec<String> = Vec::new();
    for (i, length) in lengths.iter().enumerate() {
        let mut name = String::new();
        while name.len() + 100 < *length {
            name += &"d".repeat(60);
            name += "/";
        }
        name += &"n".repeat(length - name.len() - 4);
        name += ".txt";
        assert_eq!(name.len(), *length);
        folder.write(&format!("r/{name}"), i.to_string());
        keys.push(name[..length - 4].to_owned());
    }
    keys.sort();
    for format in ["gnu", "pax", "oldgnu"] {
        if !folder.run(&format!(
            "tar --format={format} -cf {format}.tar -C r --transform=s,^./,, ."
        )) {
            return;
        }
        let mut found: Vec<String> = read_all(&Tar::new([folder.at(&format!("{format}.tar"))]))
            .unwrap()
            .into_iter()
            .map(|record| record.key.unwrap())
            .collect();
        found.sort();
        assert_eq!(found, keys, "{format}");
    }
    let short = "p".repeat(97) + "/" + &"n".repeat(95) + ".txt";
    folder.write(&format!("s/{short}"), "x");
    folder.run("tar --format=ustar -cf u.tar -C s .");
    let all = read_all(&Tar::new([folder.at("u.tar")])).unwrap();
    assert_eq!(all[0].key.as_deref(), Some(&short[..short.len() - 4]));
}

#[test]
fn files_with_holes() {
    let folder = Folder::new();
    // Many pieces, so that the old format needs further blocks, and a hole at the end.
    let made = folder.run(
        "truncate -s 4M h.npy; for i in $(seq 0 2 60); do printf part$i | dd of=h.npy bs=65536 seek=$i conv=notrunc status=none; done; printf x > h.cls",
    );
    assert!(made);
    folder.write("t.npy", []);
    folder.run("truncate -s 1M t.npy; printf tail >> t.npy; printf y > t.cls");
    for (format, name) in [
        ("gnu", "g"),
        ("oldgnu", "o"),
        ("pax --sparse-version=0.0", "p0"),
        ("pax --sparse-version=0.1", "p1"),
        ("pax --sparse-version=1.0", "p2"),
    ] {
        if !folder.run(&format!(
            "tar --sparse --format={format} -cf {name}.tar h.npy h.cls t.npy t.cls"
        )) {
            return;
        }
        let size = fs::metadata(folder.at(&format!("{name}.tar"))).unwrap().len();
        assert!(size < 1 << 20, "{name}: {size}");
        let all = read_all(&Tar::new([folder.at(&format!("{name}.tar"))])).unwrap();
        assert_eq!(all.len(), 2, "{name}");
        assert!(bytes(&all[0], "npy") == fs::read(folder.at("h.npy")).unwrap(), "{name}");
        assert!(bytes(&all[1], "npy") == fs::read(folder.at("t.npy")).unwrap(), "{name}");
        let chosen = read_all(&Tar::new([folder.at(&format!("{name}.tar"))]).fields(["cls"])).unwrap();
        assert_eq!(bytes(&chosen[1], "cls"), b"y");
        assert_eq!(chosen[1].value.get("npy"), None);
    }
}

#[test]
#[cfg(unix)]
fn names_that_are_not_utf8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = Folder::new();
    fs::create_dir(folder.path().join("d")).unwrap();
    for name in [
        &b"caf\xe9.txt"[..],
        "猫.txt".as_bytes(),
        "cafe\u{301}.txt".as_bytes(),
        "café.txt".as_bytes(),
    ] {
        fs::write(folder.path().join("d").join(OsStr::from_bytes(name)), "1").unwrap();
    }
    for format in ["gnu", "pax", "ustar"] {
        if !folder.run(&format!("tar --sort=name --format={format} -cf {format}.tar -C d .")) {
            return;
        }
        let keys = |tar: Tar| -> Vec<String> {
            read_all(&tar)
                .unwrap()
                .into_iter()
                .map(|record| record.key.unwrap())
                .collect()
        };
        let mut found = keys(Tar::new([folder.at(&format!("{format}.tar"))]));
        found.sort();
        assert_eq!(found, ["cafe\u{301}", "café", "caf\u{efe9}", "猫"], "{format}");
        let latin = keys(
            Tar::new([folder.at(&format!("{format}.tar"))])
                .names(Names::Latin1)
                .repeats(true),
        );
        assert_eq!(latin.iter().filter(|key| *key == "café").count(), 2);
    }
}

#[test]
fn archives_that_are_appended_and_unsorted() {
    let folder = Folder::new();
    for name in ["0.a", "1.a", "0.b", "1.b"] {
        folder.write(name, name);
    }
    if !folder.run("tar -cf b.tar 0.a 1.a && tar -rf b.tar 0.b 1.b") {
        return;
    }
    let all = read_all(&Tar::new([folder.at("b.tar")]).grouping(Grouping::Scattered)).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(bytes(&all[1], "b"), b"1.b");
    let error = read_all(&Tar::new([folder.at("b.tar")])).unwrap_err();
    assert_eq!(error.key(), Some("0"));
    // Neighbouring shards of the same keys are never one sample.
    let all = read_all(&Tar::new([folder.at("b.tar"), folder.at("b.tar")]).repeats(true)).unwrap();
    assert_eq!(all.len(), 8);
}
