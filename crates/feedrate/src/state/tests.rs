use proptest::prelude::*;

use super::*;

fn any_state() -> impl Strategy<Value = State> {
    let leaf = prop_oneof![
        Just(State::Null),
        any::<bool>().prop_map(State::Bool),
        any::<u64>().prop_map(State::Number),
        any::<String>().prop_map(State::Text),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(State::List),
            prop::collection::btree_map(any::<String>(), inner, 0..6).prop_map(State::Map),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(state in any_state()) {
        prop_assert_eq!(state.to_string().parse::<State>().unwrap(), state);
    }

    /// Whatever it is, it is read or refused.
    #[test]
    fn nothing_panics(text in r#"[\[\]{}",:0-9a-zA-Z\\ uédD8]{0,40}"#) {
        let _ = text.parse::<State>();
    }

    #[test]
    fn bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
        let state = State::map([("bytes", State::bytes(&bytes))]);
        prop_assert_eq!(state.to_bytes("bytes").unwrap(), bytes);
    }
}

#[test]
fn json_of_others() {
    let text = " {\"a\" : [1,2 , {}], \"b\":\t\"\\u00e9\\ud83d\\ude00\\n\\/\", \"c\": [] ,\"d\":null}\n";
    let state: State = text.parse().unwrap();
    assert_eq!(state.text("b").unwrap(), "é😀\n/");
    assert_eq!(
        state.to_string(),
        "{\"a\": [1, 2, {}], \"b\": \"é😀\\u000a/\", \"c\": [], \"d\": null}"
    );
}

#[test]
fn what_is_no_state_is_refused() {
    let deep = "[".repeat(100_000);
    let bad = [
        "",
        "{",
        "[1",
        "[1 2]",
        "{\"a\" 1}",
        "{a: 1}",
        "{\"a\": 1, \"a\": 2}",
        "-1",
        "1.5",
        "1e3",
        "18446744073709551616",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\n\"",
        "nul",
        "1 2",
        deep.as_str(),
    ];
    for text in bad {
        let error = text.parse::<State>().unwrap_err();
        assert!(error.is_state(), "{text}");
    }
}

#[test]
fn entries() {
    let state = State::map([("n", State::from(5)), ("t", "x".into()), ("l", vec![1_u64, 2].into())]);
    assert_eq!((state.number("n").unwrap(), state.count("n").unwrap()), (5, 5));
    assert_eq!((state.text("t").unwrap(), state.list("l").unwrap().len()), ("x", 2));
    assert_eq!(
        state.number("t").unwrap_err().to_string(),
        "the state does not fit: `t` must be a number and is a text"
    );
    assert!(state.text("n").unwrap_err().is_state());
    assert!(state.list("n").unwrap_err().is_state());
    assert!(state.to_bytes("t").unwrap_err().is_state());
    assert!(
        state
            .entry("missing")
            .unwrap_err()
            .to_string()
            .contains("`missing` is missing")
    );
    assert!(state.must_be("n", 5, "samples", "").is_ok());
    let error = state.must_be("n", 6, "samples", "take the same dataset").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the state does not fit: samples: 5 in the state, 6 here: take the same dataset"
    );
}
