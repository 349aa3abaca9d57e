//! The table of cases in `docs/cases.md` and the tests that carry the cases' numbers are the same.

// Clippy takes only the test functions themselves for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Every case that must have a row.
const CASES: [&str; 33] = [
    "W01", "W02", "W04", "W05", "W06", "W07", "W08", "W10", "W11", "W12", "W13", "W14", "W15", "W16", "W18", "W19",
    "W20", "W21", "W22", "W23", "W25", "W26", "W27", "W28", "W30", "W32", "W33", "W35", "W37", "S01", "S02", "S03",
    "S04",
];

/// By case, its tests as `FILE::NAME`.
type Tests = BTreeMap<String, BTreeSet<String>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The case at the beginning of a text, as `w01_` or `W01 `.
fn number(text: &str) -> Option<String> {
    let (number, rest) = text.split_at_checked(3)?;
    let digits = number.strip_prefix(['w', 's', 'W', 'S'])?;
    let ends = rest.is_empty() || rest.starts_with(['_', ' ']);
    (ends && digits.chars().all(|c| c.is_ascii_digit())).then(|| number.to_uppercase())
}

/// The cases that a test's name begins with: `w04_w05_…` has two.
fn numbers(name: &str) -> Vec<String> {
    name.split('_').map_while(number).collect()
}

/// The rows of the table.
fn table() -> Tests {
    let text = std::fs::read_to_string(root().join("docs/cases.md")).unwrap();
    let mut rows = Tests::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let Some(case) = number(cells[0]) else { continue };
        let tests = cells[2].split('`').filter(|text| text.contains("::")).map(str::to_owned).collect();
        assert!(rows.insert(case, tests).is_none(), "two rows: {line}");
    }
    rows
}

/// The test functions whose names begin with a case's number.
fn tests() -> Tests {
    let mut found = Tests::new();
    let mut folders: Vec<PathBuf> = vec![root().join("tests"), root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = path.strip_prefix(root()).unwrap().display().to_string();
                for name in functions(&std::fs::read_to_string(&path).unwrap()) {
                    for case in numbers(&name) {
                        found.entry(case).or_default().insert(format!("{file}::{name}"));
                    }
                }
            }
        }
    }
    found
}

/// The names of the functions below an attribute `#[test]`, `#[tokio::test]` or `#[rstest]`.
fn functions(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.contains("test");
        } else if let Some((before, after)) = line.split_once("fn ") {
            let whole = before.is_empty() || before.ends_with(' ');
            if is_test
                && whole
                && let Some((name, _)) = after.split_once('(')
            {
                names.push(name.to_owned());
            }
            is_test = false;
        }
    }
    names
}

#[test]
fn each_row_names_the_tests_that_carry_its_number_and_no_others() {
    let (rows, tests) = (table(), tests());
    let all: BTreeSet<&String> = rows.keys().chain(tests.keys()).collect();
    for case in all {
        let none = BTreeSet::new();
        let (told, there) = (rows.get(case).unwrap_or(&none), tests.get(case).unwrap_or(&none));
        let missing: Vec<_> = told.difference(there).collect();
        assert!(missing.is_empty(), "docs/cases.md, {case}: no test {missing:?}");
        let untold: Vec<_> = there.difference(told).collect();
        assert!(untold.is_empty(), "docs/cases.md, {case}: the row does not name {untold:?}");
    }
}

#[test]
fn each_case_has_a_row_and_a_test() {
    let rows = table();
    for case in CASES {
        assert!(rows.get(case).is_some_and(|tests| !tests.is_empty()), "docs/cases.md: {case} has no row with a test");
    }
}
