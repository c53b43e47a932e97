//! Rows, types and their inference.

use proptest::prelude::*;

use super::*;

fn csv(text: impl Into<Vec<u8>>) -> Csv {
    Csv::of([Blob::memory("t.csv", text.into())])
}

fn all(source: &Csv) -> Vec<Result<Value, String>> {
    let mut reader = match source.open(0, None) {
        Ok(reader) => reader,
        Err(error) => return vec![Err(error.to_string())],
    };
    let mut all = Vec::new();
    loop {
        match reader.next() {
            Ok(None) => return all,
            Ok(Some(record)) => all.push(Ok(record.value)),
            Err(error) => {
                all.push(Err(error.to_string()));
                if !error.may_continue() {
                    return all;
                }
            }
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as rows are compared")]
fn row(a: &str, b: &str) -> Result<Value, String> {
    Ok(Value::map([("a", Value::from(a)), ("b", b.into())]))
}

#[test]
fn rows() {
    let text = "\u{feff}a,b\r\n1,\"x,\"\"y\"\"\n\"\r\n\r\n\"\",z\"\n";
    assert_eq!(all(&csv(text)), [row("1", "x,\"y\"\n"), row("", "z\"")]);
    assert_eq!(all(&csv("a\tb\n1\t'2'").delimiter(b'\t').quote(b'\'')), [row("1", "2")]);
    assert_eq!(all(&csv("1,2\n").names(["a", "b"])), [row("1", "2")]);
    assert_eq!(all(&csv("")), []);
    assert_eq!(all(&csv("a,b\n")), []);
    let chosen = csv("a,b,c\n1,2,3").columns(["c", "a"]);
    assert_eq!(
        all(&chosen),
        [Ok(Value::map([("c", Value::from("3")), ("a", "1".into())]))]
    );
}

#[test]
fn bad_rows_are_named() {
    let got = all(&csv("a,b\n1\n\"2\n\",3\n\"x\"y,4\n5,6\n7,\"8\n"));
    assert_eq!(
        got[0],
        Err("t.csv, line 2, byte 4: the row has 1 fields where there are 2 columns".into())
    );
    assert_eq!(got[1], row("2\n", "3"));
    assert_eq!(
        got[2],
        Err("t.csv, line 5, byte 13: there is something behind closing quotes".into())
    );
    assert_eq!(got[3], row("5", "6"));
    assert!(
        got[4]
            .as_ref()
            .is_err_and(|error| error.contains("quotes that do not close")),
        "{got:?}"
    );
    assert_eq!(got.len(), 5);
    assert!(all(&csv("a,a\n1,2"))[0].is_err());
    assert!(
        all(&csv("a,b\n1,2").columns(["c"]))[0]
            .as_ref()
            .is_err_and(|error| error.contains("there are a, b"))
    );
    let long = format!("a,b\n1,\"{}\"\n", "x".repeat(100_000));
    assert!(
        all(&csv(long).max_row_bytes(5000))[0]
            .as_ref()
            .is_err_and(|error| error.contains("5000"))
    );
}

#[test]
fn the_limit_holds_for_rows_that_are_buffered() {
    let text = format!("a,b\n1,{}\n2,3\n", "x".repeat(98));
    assert_eq!(all(&csv(text.clone()).max_row_bytes(100)).len(), 2);
    let got = all(&csv(text).max_row_bytes(99));
    let error = got[0].as_ref().unwrap_err();
    assert!(
        error.starts_with("t.csv, line 2, byte 4: the row has more than 99 bytes")
            && error.contains("raise max_row_bytes"),
        "{error}"
    );
    assert_eq!(got.len(), 1);
    let header = all(&csv("a,b\n1,2\n").max_row_bytes(2));
    assert!(
        header[0].as_ref().is_err_and(|error| error.contains("line 1")),
        "{header:?}"
    );
}

#[test]
fn types() {
    let text = "a,b,c,d\n1,1.5,true,x\n,,,\n-2,3,FALSE,7\n1.5,x,1,\n";
    let types = [("a", CsvType::Int), ("b", CsvType::Float), ("c", CsvType::Bool)];
    let given = all(&csv(text).types(types));
    let inferred = all(&csv(text).infer(3));
    assert_eq!(inferred[..3], given[..3]);
    assert_eq!(
        inferred[3].as_ref().unwrap_err(),
        "t.csv, line 5, byte 38: column a has \"1.5\", which is not a whole number of 64 bits; that type was inferred from the first \
         3 rows of t.csv: give the column a type with types (text fits all), or raise infer to look at more rows"
    );
    let second = given[1].as_ref().unwrap();
    assert_eq!(
        (second.get("a"), second.get("d")),
        (Some(&Value::None), Some(&"".into()))
    );
    assert_eq!(given[2].as_ref().unwrap().get("c"), Some(&Value::Bool(false)));
    let error = given[3].as_ref().unwrap_err();
    assert_eq!(
        error,
        "t.csv, line 5, byte 38: column a has \"1.5\", which is not a whole number of 64 bits"
    );
    assert!(all(&csv(text).types([("x", CsvType::Int)]))[0].is_err());
}

/// The first column's values, as text; an error's message.
fn first(source: &Csv, part: usize) -> Vec<String> {
    let mut reader = source.open(part, None).unwrap();
    let next = |_| match reader.next() {
        Ok(record) => record.map(|record| format!("{:?}", record.value.get("a").unwrap())),
        Err(error) => Some(error.message().to_owned()),
    };
    (0..9).map_while(next).collect()
}

#[test]
fn inference_fits_all_rows_in_any_order() {
    let (text, int, float) = (CsvType::Text, CsvType::Int, CsvType::Float);
    for (rows, kind) in [
        (["true", "1", ""], text),
        (["true", "1.5", ""], text),
        (["false", "x", ""], text),
        (["1", "1.5", ""], float),
        (["1", "", "2"], int),
        (["9007199254740993", "1.5", ""], text),
        (["9007199254740993", "true", "1.5"], text),
        (["True", "", "FALSE"], CsvType::Bool),
        (["", "", ""], text),
    ] {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let lines = order.map(|at| format!("{},\n", rows[at]));
            let source = csv(format!("a,b\n{}", lines.concat()));
            let right = all(&csv(format!("a,b\n{}", lines.concat())).types([("a", kind)]));
            assert_eq!(all(&source.infer(9)), right, "{lines:?}");
        }
    }
}

#[test]
fn inference_goes_on_in_the_next_files() {
    let of = |files: &[&str]| {
        let blob = |(at, text): (usize, &&str)| Blob::memory(&format!("{at}.csv"), text.as_bytes());
        Csv::of(files.iter().enumerate().map(blob))
    };
    // Files without rows, and with a blank column, tell nothing.
    for start in ["", "a,b\n", "b,a\n1,\n", "a,b\n,1\n,2\n,3\n"] {
        for rows in [1, 2, 100] {
            let source = of(&[start, "a,b\n7,2\n"]).infer(rows);
            assert_eq!(first(&source, 1), ["Int(7)"], "{start:?} {rows}");
        }
    }
    // All the rows that were looked at are fit, and no more are looked at than are asked for.
    let files = ["a,b\n1,1\n", "a,b\n2.5,1\nx,1\n", "a,b\ntrue,1\n"];
    assert_eq!(first(&of(&files).infer(2), 0), ["Float(1.0)"]);
    assert_eq!(first(&of(&files).infer(3), 0), ["Str(\"1\")"]);
    let error = &first(&of(&files).infer(2), 1)[1];
    assert!(
        error.contains("inferred from the first 2 rows of 0.csv … 1.csv (2 files): give"),
        "{error}"
    );
    assert!(first(&of(&files).infer(1), 1)[0].contains("the first 1 rows of 0.csv: give"));
    // A blank column that is not wanted, or has its type, opens no more files.
    let files = ["a,b\n1,\n", "a,b\nx,1\n"];
    assert_eq!(first(&of(&files).infer(1).columns(["a"]), 0), ["Int(1)"]);
    assert_eq!(first(&of(&files).infer(1).types([("b", CsvType::Int)]), 0), ["Int(1)"]);
    assert_eq!(first(&of(&files).infer(1), 0), ["Str(\"1\")"]);
    // What is wrong with a file is that file's.
    let files = ["a,a\n1,1\n", "a,b\n\"1,1\n", "a,b\n3,1\n"];
    assert_eq!(first(&of(&files).infer(5), 2), ["Int(3)"]);
    let many = vec!["a,b\n"; MOST_LOOKED_AT];
    assert_eq!(
        first(
            &of(&[&many[1..], &["a,b\n1,2\n"]].concat()).infer(1),
            MOST_LOOKED_AT - 1
        ),
        ["Int(1)"]
    );
    assert_eq!(
        first(&of(&[&many[..], &["a,b\n1,2\n"]].concat()).infer(1), MOST_LOOKED_AT),
        ["Str(\"1\")"]
    );
}

proptest! {
    #[test]
    fn what_another_writer_writes(
        rows in proptest::collection::vec(proptest::collection::vec("[ab,\"\r\n é]{0,6}", 3), 0..12),
        at in 0_usize..12,
    ) {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["x", "y", "z"]).unwrap();
        for row in &rows {
            writer.write_record(row).unwrap();
        }
        let source = csv(writer.into_inner().unwrap());
        let got = all(&source);
        prop_assert_eq!(got.len(), rows.len());
        for (got, row) in got.iter().zip(&rows) {
            let right = Value::map(["x", "y", "z"].into_iter().zip(row.iter().map(|text| Value::from(text.as_str()))));
            prop_assert_eq!(got, &Ok(right));
        }
        let at = at.min(rows.len());
        let mut reader = source.open(0, None).unwrap();
        prop_assert_eq!(reader.skip(at as u64).unwrap(), at as u64);
        let mut again = source.open(0, Some(reader.mark())).unwrap();
        prop_assert_eq!(again.next().unwrap().map(|record| record.value), got.get(at).map(|value| value.clone().unwrap()));
    }
}
