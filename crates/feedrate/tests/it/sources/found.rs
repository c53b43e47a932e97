//! Patterns, folders and formats on a real file system.

use feedrate::source::{Codec, Fault, Files, Format, Source, detect, open};
use feedrate::store::{Blob, find};

use super::{Folder, bytes, drain, read_all};

fn names(folder: &Folder, pattern: &str) -> Vec<String> {
    let root = folder.at("");
    let found = find(&[folder.at(pattern)]).unwrap();
    found
        .iter()
        .map(|blob| blob.name().trim_start_matches(&root).to_owned())
        .collect()
}

#[test]
fn patterns_find_files_in_a_stated_order() {
    let folder = Folder::new();
    for name in [
        "s-9.tar",
        "s-10.tar",
        "s-[1].tar",
        "d/a.tar",
        "d/e/b.tar",
        ".hidden.tar",
        "_x.tar",
        "n.txt",
    ] {
        folder.write(name, name);
    }
    folder.run("ln -s .. d/loop");
    assert_eq!(names(&folder, "s-{9..10}.tar"), ["s-9.tar", "s-10.tar"]);
    assert_eq!(names(&folder, "s-*.tar"), ["s-10.tar", "s-9.tar", "s-[1].tar"]);
    assert_eq!(names(&folder, "s-[1].tar"), ["s-[1].tar"]);
    assert_eq!(names(&folder, "s-[0-9].tar"), ["s-9.tar"]);
    assert_eq!(names(&folder, "d/**/*.tar")[..2], ["d/a.tar", "d/e/b.tar"]);
    assert_eq!(names(&folder, ".h*"), [".hidden.tar"]);
    assert_eq!(names(&folder, ""), ["n.txt", "s-10.tar", "s-9.tar", "s-[1].tar"]);
    let error = find(&[folder.at("s-{8..9}.tar")]).unwrap_err();
    assert!(
        error.message().contains("s-8.tar") && error.message().contains("*.tar"),
        "{error}"
    );
    let error = find(&[folder.at("*.parquet")]).unwrap_err();
    assert_eq!(error.fault(), Fault::Missing);
    assert!(error.message().contains("5 *.tar"), "{error}");
    let error = find(&[folder.at("no/such/*.tar")]).unwrap_err();
    assert!(error.to_string().contains("no/such/*.tar"), "{error}");
    assert!(find::<&str>(&[]).is_err());
}

#[test]
fn links_that_lead_nowhere_are_named() {
    let folder = Folder::new();
    folder.write("d/a.jsonl", "{}");
    folder.write("d/e/b.jsonl", "{}");
    let count = |pattern: &str| find(&[folder.at(pattern)]).map(|found| found.len());
    // A folder that fits where files are wanted, and files where folders are, are passed over.
    assert_eq!(count("d/*").unwrap(), 1);
    assert_eq!(count("d/*/*.jsonl").unwrap(), 1);
    assert_eq!(count("d/**/*.jsonl").unwrap(), 2);
    assert_eq!(count("d").unwrap(), 1);
    let wrong = |pattern: &str, link: &str| {
        let error = count(pattern).unwrap_err();
        assert_eq!(error.fault(), Fault::Missing, "{pattern}: {error}");
        let text = error.to_string();
        assert!(
            text.contains(link) && text.contains("symbolic link to ../gone"),
            "{pattern}: {error}"
        );
    };
    folder.run("ln -s ../gone.jsonl d/z.jsonl");
    for pattern in ["d", "d/*.jsonl", "d/**/*.jsonl", "d/**", "d/z.jsonl", "d/{a,z}.jsonl"] {
        wrong(pattern, "d/z.jsonl");
    }
    // What does not fit is no matter, and neither are indexes.
    assert_eq!(count("d/a*").unwrap(), 1);
    folder.run("mv d/z.jsonl d/z.jsonl.feedrate-index");
    assert_eq!(count("d/*.jsonl*").unwrap(), 1);
    assert_eq!(count("d").unwrap(), 1);
    // A folder that would be on the way.
    folder.run("rm d/z.jsonl.feedrate-index; ln -s ../gone d/f");
    for pattern in ["d/*/b.jsonl", "d/**/*.jsonl", "d/f/*.jsonl"] {
        wrong(pattern, "d/f");
    }
    folder.run("rm d/f; ln -s e d/f");
    folder.write("d/lost+found/b.jsonl", "{}");
    assert_eq!(count("d/*/b.jsonl").unwrap(), 2);
}

#[test]
fn folders_that_cannot_be_read_are_named() {
    let folder = Folder::new();
    for name in ["d/a/s.jsonl", "d/b/s.jsonl"] {
        folder.write(name, "{}");
    }
    folder.run("chmod 000 d/b");
    // Root reads everything.
    let denied = std::fs::read_dir(folder.at("d/b")).is_err();
    for pattern in [
        "d/*/*.jsonl",
        "d/**/*.jsonl",
        "d/*/s.jsonl",
        "d/b/*.jsonl",
        "d/b/s.jsonl",
        "d/b",
    ] {
        let found = find(&[folder.at(pattern)]);
        if denied {
            let error = found.unwrap_err().to_string();
            assert!(
                error.contains("d/b") && error.contains("ermission denied"),
                "{pattern}: {error}"
            );
        } else {
            assert!(found.is_ok(), "{pattern}");
        }
    }
    folder.run("chmod 700 d/b");
}

#[test]
fn folders_are_classes() {
    let folder = Folder::new();
    for class in ["b", "a", ".ipynb_checkpoints", "c"] {
        for file in ["10.jpg", "9.JPG", "._9.jpg", ".DS_Store", "n.txt", "deep/1.jpg"] {
            folder.write(&format!("r/{class}/{file}"), format!("{class}{file}"));
        }
    }
    folder.write("r/top.jpg", "x");
    folder.run("ln -s .. r/a/loop; ln -s nowhere r/c/zz.jpg");
    let files = || Files::new([folder.at("r")]).extensions(["jpg"]).files_per_part(4);
    let source = files().classes(true);
    assert_eq!(source.class_names().unwrap(), ["a", "b", "c"]);
    assert!(source.skipped().unwrap() > 0);
    let parts = source.parts().unwrap();
    assert_eq!(
        parts.iter().map(|part| part.records.unwrap()).collect::<Vec<_>>(),
        [4, 4, 2]
    );
    let first: Vec<_> = (0..2)
        .flat_map(|part| drain(&mut *source.open(part, None).unwrap()).0)
        .collect();
    let keys: Vec<&str> = first.iter().map(|record| record.key.as_deref().unwrap()).collect();
    assert_eq!(
        keys,
        [
            "a/10.jpg",
            "a/9.JPG",
            "a/deep/1.jpg",
            "b/10.jpg",
            "b/9.JPG",
            "b/deep/1.jpg",
            "c/10.jpg",
            "c/9.JPG"
        ]
    );
    assert_eq!(bytes(&first[4], "bytes"), b"b9.JPG");
    assert_eq!(first[4].value.get("label"), Some(&1_i64.into()));
    assert_eq!(first[4].value.get("class"), Some(&"b".into()));
    let mut last = source.open(2, None).unwrap();
    let error = last.next().unwrap_err();
    assert_eq!((error.fault(), error.key()), (Fault::Record, Some("c/zz.jpg")));
    assert_eq!(last.next().unwrap().unwrap().key.as_deref(), Some("c/deep/1.jpg"));
    let mut reader = source.open(1, None).unwrap();
    reader.skip(2).unwrap();
    assert_eq!(
        source.open(1, Some(reader.mark())).unwrap().next().unwrap(),
        reader.next().unwrap()
    );
    folder.run("mkdir r/empty");
    let error = files().classes(true).parts().unwrap_err();
    assert!(error.message().contains("empty"), "{error}");
    let error = read_all(&files().max_file_bytes(3)).unwrap_err();
    assert_eq!((error.fault(), error.key()), (Fault::TooLarge, Some("a/10.jpg")));
    let right = "/a/10.jpg: the file has 7 bytes, the limit is 3: raise max_file_bytes if that is right";
    assert_eq!(error.to_string(), format!("{}{right}", folder.at("r")));
    // Of a pattern's file the path is the key.
    let error = read_all(&Files::new([folder.at("r/a/10.jpg")]).max_file_bytes(3)).unwrap_err();
    assert_eq!(error.to_string(), format!("{}{right}", folder.at("r")));
    assert_eq!(
        Files::new([folder.at("r/a/*.jpg")]).parts().unwrap()[0].records,
        Some(1)
    );
    assert!(Files::new([folder.at("r")]).extensions(["gif"]).parts().is_err());
}

#[test]
fn a_file_that_is_too_large_is_not_read_first() {
    let folder = Folder::new();
    let path = folder.write("huge.bin", "");
    std::fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(3 << 30))
        .unwrap();
    // Read up to the limit, it could not say how large it is.
    let error = read_all(&Files::new([path])).unwrap_err();
    assert!(error.message().contains("has 3221225472 bytes"), "{error}");
    // Nor does this file know its size.
    let error = read_all(&Files::new(["/proc/self/status"]).max_file_bytes(9)).unwrap_err();
    assert!(error.message().contains("has more than 9 bytes"), "{error}");
}

#[test]
fn formats_are_found_and_opened() {
    let folder = Folder::new();
    folder.write("a/1.jpg", "x");
    folder.write("l/x.jsonl", "{\"a\":1}\n");
    folder.write("t.dat", "{\"a\":1}\n");
    folder.write("v.csv", "a,b\n1,2\n");
    folder.write("mixed/a.csv", "x");
    folder.write("mixed/a.tar", "x");
    folder.write("m/index.json", "{\"shards\": [], \"version\": 2}");
    assert_eq!(detect(&Blob::file(folder.at("m"))).unwrap(), Format::Mds);
    assert_eq!(detect(&Blob::file(folder.at("a"))).unwrap(), Format::Files);
    let error = detect(&Blob::file(folder.at("mixed"))).unwrap_err();
    assert!(error.message().contains("csv, tar"), "{error}");
    for (pattern, format) in [
        ("a", "files"),
        ("l", "jsonl"),
        ("t.dat", "jsonl"),
        ("v.csv", "csv"),
        ("l/*.jsonl", "jsonl"),
        ("a/*.jpg", "files"),
    ] {
        let source = open(&folder.at(pattern)).unwrap();
        assert_eq!(source.format(), format, "{pattern}");
        assert_eq!(read_all(&source).unwrap().len(), 1);
    }
    let empty = open(&folder.at("m")).unwrap();
    assert_eq!((empty.format(), read_all(&empty).unwrap().len()), ("mds", 0));
    // An archive of no known use is found, and not read.
    folder.write("z.zip", "PK\u{5}\u{6}");
    assert_eq!(open(&folder.at("z.zip")).unwrap_err().fault(), Fault::Unsupported);
    assert_eq!(open(&folder.at("none")).unwrap_err().fault(), Fault::Missing);
    if folder.run("tar -cf s.bin a && gzip -k s.bin && gzip -k v.csv") {
        assert_eq!(open(&folder.at("s.bin")).unwrap().format(), "tar");
        assert_eq!(open(&folder.at("s.bin.gz")).unwrap().format(), "tar");
        assert_eq!(open(&folder.at("v.csv.gz")).unwrap().format(), "csv");
        assert_eq!(
            Codec::find(&std::fs::read(folder.at("v.csv.gz")).unwrap()),
            Some(Codec::Gzip)
        );
    }
}
