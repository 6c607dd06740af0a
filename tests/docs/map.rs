//! The map of the code in architecture.md is that of src/.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::pages::{page, read, root};
use crate::source::{between, strings};

#[test]
fn every_module_is_on_the_map() {
    let map = page("architecture").code().join("\n");
    let words: BTreeSet<&str> = map.split_whitespace().map(|word| word.trim_start_matches("src/")).collect();
    let entries = fs::read_dir(root().join("src")).expect("src/").map(|entry| entry.expect("an entry"));
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let missing =
        names.filter(|name| !words.contains(name.as_str()) && !words.contains(format!("{name}/").as_str()));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn every_file_on_the_map_exists() {
    let mut files = BTreeSet::new();
    collect(&root().join("src"), &mut files);
    let map = page("architecture").code().join(" ");
    let words = map.split([' ', ':', ',', ';', '(', ')', '\n']);
    let names = words.filter(|word| {
        !word.contains('/') && Path::new(word).extension().is_some_and(|ending| ending == "rs")
    });
    let missing = names.filter(|name| !files.contains(*name) && !root().join(name).exists());
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn the_order_of_imports_is_that_of_the_house_rules() {
    let rules = read(Path::new("tests/tidy.rs"));
    let list = |name: &str| -> Vec<String> {
        let text = between(&rules, &format!("const {name}: &[&str] ="), ";").expect("a list");
        strings(text).collect()
    };
    let said = page("architecture").text;
    let said = between(&said, "Imports go one way, top to bottom: ", " serve all").expect("the order");
    let (layers, services) = said.split_once(';').expect("layers; services");
    let names = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((names(layers), names(services)), (list("LAYERS"), list("SERVICES")));
}

fn collect(folder: &Path, files: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        if entry.path().is_dir() {
            collect(&entry.path(), files);
        }
        files.insert(entry.file_name().to_string_lossy().into_owned());
    }
}
