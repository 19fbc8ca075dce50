//! The printed catalogue is made from the data.

use handfast_diagnosis::{Language, catalogue_page};
use std::fs;
use std::path::Path;

const UPDATE: &str = "UPDATE_SNAPSHOTS";

#[test]
fn the_printed_catalogue_is_current() {
    for (file, language) in
        [("diagnosis.md", Language::English), ("diagnosis.zh.md", Language::Chinese)]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
        let made = catalogue_page(language);
        if std::env::var_os(UPDATE).is_some() {
            fs::write(&path, &made).unwrap();
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(there == made, "docs/{file} is not current: run the tests with {UPDATE}=1");
    }
}
