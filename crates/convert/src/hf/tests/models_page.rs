//! The tables of docs/models.md say what the registries, the fixtures and the imports say.

use std::collections::BTreeSet;

use super::convert::FIXTURES;
use super::*;
use crate::gguf;

fn page() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md")).unwrap()
}

/// The rows of the first table under `heading`, whose first row must be `columns`.
fn table(page: &str, heading: &str, columns: &str) -> Vec<Vec<String>> {
    let heading = format!("\n## {heading}\n");
    let section = page.split_once(&heading).unwrap_or_else(|| panic!("no heading{heading}")).1;
    let mut lines = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    assert_eq!(lines.next(), Some(columns));
    assert!(lines.next().unwrap().starts_with("|---"));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<Vec<String>> = lines.map(cells).collect();
    let width = columns.trim_matches('|').split('|').count();
    rows.iter().for_each(|row| assert_eq!(row.len(), width, "{row:?}"));
    rows
}

/// What stands in a cell between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

const FAMILY_COLUMNS: &str = "| family | Hugging Face | GGUF | reference | cpu | MTP | verified by |";
const GGUF_COLUMNS: &str = "| `general.architecture` | becomes | compared with | status |";

/// Whether an import of one of a family's fixtures has a prediction head.
fn imports_a_head(family: &str) -> bool {
    let own = FIXTURES.iter().filter(|(_, of)| *of == Some(family));
    own.map(|(name, _)| HfSource::local(&fixtures().join(name)).unwrap().import().unwrap()).any(|model| {
        assert_eq!(model.header.arch.mtp.is_some(), model.tensors.iter().any(|t| t.name.starts_with("model.mtp.")));
        model.header.arch.mtp.is_some()
    })
}

#[test]
fn every_family_has_a_row_and_every_row_its_family() {
    let page = page();
    let mut seen = BTreeSet::new();
    let mut architectures = BTreeSet::new();
    for row in table(&page, "Families", FAMILY_COLUMNS) {
        let [name, hugging_face, gguf_names, reference, cpu, mtp, verified] = &row[..] else { panic!("{row:?}") };
        let types = quoted(hugging_face);
        let family = family::FAMILIES.iter().find(|f| types.first().is_some_and(|t| f.model_types.contains(t)));
        let family = family.unwrap_or_else(|| panic!("{name}: no family has the model type {types:?}"));
        let listed: BTreeSet<&str> = types.iter().copied().collect();
        assert_eq!(listed, family.model_types.iter().copied().collect(), "{name}: values of model_type");
        assert!(seen.insert(family.name), "{name}: a second row of {}", family.name);

        let known = gguf::architectures();
        let theirs = quoted(gguf_names);
        assert_eq!(theirs.is_empty(), gguf_names == "–", "{name}: {gguf_names}");
        theirs.iter().for_each(|arch| assert!(known.contains(arch), "{name}: GGUF has no import of {arch}"));
        architectures.extend(theirs.into_iter().map(str::to_owned));

        // Every layer kind is a part of both executors; a family for which that is not so has no row yet.
        assert_eq!((reference.as_str(), cpu.as_str()), ("yes", "yes"), "{name}: executors");
        assert_eq!(imports_a_head(family.name), mtp == "yes", "{name}: prediction head");
        let fixtures: Vec<&str> =
            FIXTURES.iter().filter(|(_, of)| *of == Some(family.name)).map(|(fixture, _)| *fixture).collect();
        if fixtures.is_empty() {
            assert_eq!(verified, "**unverified**", "{name}");
        } else {
            // A remark may follow a name, in parentheses.
            let name_of = |entry: &'_ str| entry.split(" (").next().unwrap_or_default().to_owned();
            let mut listed: Vec<String> = verified.split(", ").map(name_of).collect();
            listed.sort_unstable();
            assert_eq!(listed, fixtures, "{name}: fixtures");
        }
    }
    let registered: BTreeSet<&str> = family::FAMILIES.iter().map(|f| f.name).collect();
    assert_eq!(seen, registered, "families with a row");
    let known: BTreeSet<String> = gguf::architectures().into_iter().map(str::to_owned).collect();
    assert_eq!(architectures, known, "GGUF architectures in the table of families");
}

#[test]
fn every_gguf_architecture_has_a_row_and_every_row_its_architecture() {
    let page = page();
    let rows = table(&page, "GGUF architectures", GGUF_COLUMNS);
    let listed: Vec<&str> = rows.iter().flat_map(|row| quoted(&row[0])).collect();
    let mut known = gguf::architectures();
    let mut sorted = listed.clone();
    sorted.sort_unstable();
    known.sort_unstable();
    assert_eq!(sorted, known);
    let families = table(&page, "Families", FAMILY_COLUMNS);
    for (arch, row) in listed.into_iter().zip(&rows) {
        let [_, becomes, compared, status] = &row[..] else { panic!("{row:?}") };
        let words = |text: &str| -> Vec<String> {
            text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned).collect()
        };
        let family = words(becomes).swap_remove(0);
        assert!(HfSource::families().contains(&family.as_str()), "{arch}: becomes {family}");
        // The fixtures of the families that are imported from this architecture.
        let own: Vec<&str> =
            families.iter().filter(|row| quoted(&row[2]).contains(&arch)).map(|r| r[6].as_str()).collect();
        let own: BTreeSet<String> = own.iter().flat_map(|cell| words(cell)).collect();
        let fixtures: Vec<String> =
            words(compared).into_iter().filter(|word| FIXTURES.iter().any(|(name, _)| name == word)).collect();
        let unknown: Vec<String> = words(compared)
            .into_iter()
            .filter(|word| word.contains('_') && FIXTURES.iter().all(|(name, _)| name != word))
            .collect();
        assert!(unknown.is_empty(), "{arch}: no fixture is called {unknown:?}");
        match status.as_str() {
            "verified" => {
                assert!(!fixtures.is_empty(), "{arch}: compared with no fixture");
                fixtures.iter().for_each(|name| assert!(own.contains(name), "{arch}: {name} is of another family"));
            }
            "built" => assert!(!own.iter().any(|word| fixtures.contains(word)), "{arch}: has a fixture"),
            other => panic!("{arch}: {other}"),
        }
    }
}
