//! The printed catalogue is made from the data.

use handfast_diagnosis::{Language, printed_catalogue};
use std::fs;
use std::path::{Path, PathBuf};

const UPDATE: &str = "UPDATE_SNAPSHOTS";

#[test]
fn the_printed_catalogue_is_current() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let pages = [Language::English, Language::Chinese].map(printed_catalogue).concat();
    if std::env::var_os(UPDATE).is_some() {
        fs::create_dir_all(docs.join("diagnosis")).unwrap();
        for page in &pages {
            fs::write(docs.join(&page.path), &page.text).unwrap();
        }
    }
    for page in &pages {
        let there = fs::read_to_string(docs.join(&page.path)).unwrap_or_default();
        let advice = format!("docs/{} is not current: run the tests with {UPDATE}=1", page.path);
        assert!(there == page.text, "{advice}");
    }
    for entry in fs::read_dir(docs.join("diagnosis")).unwrap() {
        let path = PathBuf::from("diagnosis").join(entry.unwrap().file_name());
        let made = pages.iter().any(|page| Path::new(&page.path) == path);
        assert!(made, "docs/{} is of no part of the catalogue: remove it", path.display());
    }
}
