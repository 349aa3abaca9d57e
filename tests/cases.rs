//! The tables of numbers in the docs, of cases and of threats, and the tests that carry the numbers are the same.

// Clippy takes only the test functions themselves for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A table of a page: a number first, the tests that carry it last.
struct Table {
    page: &'static str,
    /// What its numbers begin with.
    letters: &'static str,
    /// Every number that must have a row with a test.
    numbers: &'static [&'static str],
}

const CASES: Table = Table {
    page: "docs/cases.md",
    letters: "WS",
    numbers: &[
        "W01", "W02", "W04", "W05", "W06", "W07", "W08", "W10", "W11", "W12", "W13", "W14", "W15", "W16", "W18", "W19",
        "W20", "W21", "W22", "W23", "W25", "W26", "W27", "W28", "W30", "W32", "W33", "W35", "W37", "S01", "S02", "S03",
        "S04",
    ],
};

const THREATS: Table = Table {
    page: "docs/security.md",
    letters: "T",
    numbers: &[
        "T01", "T02", "T03", "T04", "T05", "T06", "T07", "T08", "T09", "T10", "T11", "T12", "T13", "T14", "T15", "T16",
        "T17",
    ],
};

/// By number, its tests as `FILE::NAME`.
type Tests = BTreeMap<String, BTreeSet<String>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Table {
    /// The number at the beginning of a text, as `w01_` or `W01 `.
    fn number(&self, text: &str) -> Option<String> {
        let (number, rest) = text.split_at_checked(3)?;
        let number = number.to_uppercase();
        let digits = number.strip_prefix(|letter| self.letters.contains(letter))?;
        let ends = rest.is_empty() || rest.starts_with(['_', ' ']);
        (ends && digits.chars().all(|c| c.is_ascii_digit())).then_some(number)
    }

    /// The numbers that a test's name begins with: `w04_w05_…` has two.
    fn numbers(&self, name: &str) -> Vec<String> {
        let numbered = |part: &&str| CASES.number(part).or_else(|| THREATS.number(part)).is_some();
        name.split('_').take_while(numbered).filter_map(|part| self.number(part)).collect()
    }

    /// The rows of the page.
    fn rows(&self) -> Tests {
        let text = std::fs::read_to_string(root().join(self.page)).unwrap();
        let mut rows = Tests::new();
        for line in text.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let (Some(number), Some(tests)) = (self.number(cells[0]), cells.last()) else { continue };
            let tests = tests.split('`').filter(|text| text.contains("::")).map(str::to_owned).collect();
            assert!(rows.insert(number, tests).is_none(), "two rows: {line}");
        }
        rows
    }

    /// The test functions whose names begin with a number of this table.
    fn tests(&self) -> Tests {
        let mut found = Tests::new();
        for (file, name) in all_tests() {
            for number in self.numbers(&name) {
                found.entry(number).or_default().insert(format!("{file}::{name}"));
            }
        }
        found
    }
}

/// Each test function, with its file.
fn all_tests() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root().join("tests"), root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = path.strip_prefix(root()).unwrap().display().to_string();
                let names = functions(&std::fs::read_to_string(&path).unwrap());
                found.extend(names.into_iter().map(|name| (file.clone(), name)));
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

#[rstest]
#[case::cases(CASES)]
#[case::threats(THREATS)]
fn each_row_names_the_tests_that_carry_its_number_and_no_others(#[case] table: Table) {
    let (page, rows, tests) = (table.page, table.rows(), table.tests());
    let all: BTreeSet<&String> = rows.keys().chain(tests.keys()).collect();
    for number in all {
        let none = BTreeSet::new();
        let (told, there) = (rows.get(number).unwrap_or(&none), tests.get(number).unwrap_or(&none));
        let missing: Vec<_> = told.difference(there).collect();
        assert!(missing.is_empty(), "{page}, {number}: no test {missing:?}");
        let untold: Vec<_> = there.difference(told).collect();
        assert!(untold.is_empty(), "{page}, {number}: the row does not name {untold:?}");
    }
}

#[rstest]
#[case::cases(CASES)]
#[case::threats(THREATS)]
fn each_number_has_a_row_and_a_test(#[case] table: Table) {
    let rows = table.rows();
    for number in table.numbers {
        let has_one = rows.get(*number).is_some_and(|tests| !tests.is_empty());
        assert!(has_one, "{}: {number} has no row with a test", table.page);
    }
}
