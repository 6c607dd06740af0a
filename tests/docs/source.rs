//! What the source says: its lists, the fields of what it reads, the words that it writes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::pages::{read, root};

/// A file of the repository, without its tests.
pub(crate) fn code_of(path: &str) -> String {
    without_tests(&read(Path::new(path)))
}

/// All code of src/, strings that go over several lines made whole.
pub(crate) fn all_code() -> String {
    let mut code = String::new();
    collect(&root().join("src"), &mut code);
    let mut lines = code.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |code, rest| code + rest.trim_start())
}

fn collect(folder: &Path, code: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            collect(&entry, code);
        } else {
            code.push_str(&without_tests(&fs::read_to_string(&entry).expect("a text")));
        }
    }
}

fn without_tests(text: &str) -> String {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text).to_owned()
}

/// The strings of `const NAME: … = …;`
pub(crate) fn list(path: &str, name: &str) -> BTreeSet<String> {
    let code = code_of(path);
    let text = code.split_once(&format!("const {name}: ")).unwrap_or_else(|| panic!("no list {name}")).1;
    let text = between(text, "=", ";\n").unwrap_or_else(|| panic!("{name} has no end"));
    strings(text).collect()
}

/// The strings that follow these words, wherever.
pub(crate) fn strings_behind(code: &str, words: &str) -> BTreeSet<String> {
    let start = format!("{words}\"");
    code.split(&start).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

pub(crate) fn strings(code: &str) -> impl Iterator<Item = String> {
    code.split('"').skip(1).step_by(2).map(str::to_owned)
}

/// The keys that serde reads into a struct, behind a prefix.
pub(crate) fn keys(path: &str, name: &str, prefix: &str) -> BTreeSet<String> {
    let code = code_of(path);
    let text =
        code.split_once(&format!("struct {name} {{\n")).unwrap_or_else(|| panic!("no struct {name}")).1;
    let (text, mut keys, mut attribute) = (text.split("\n}").next().unwrap_or(text), BTreeSet::new(), "");
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if line.starts_with("#[") {
            attribute = line;
            continue;
        }
        let field = line.split(':').next().and_then(|name| name.rsplit(' ').next()).unwrap_or_default();
        let renamed = between(attribute, "rename = \"", "\"").unwrap_or(field);
        if attribute != "#[serde(skip)]" {
            keys.insert(format!("{prefix}{renamed}"));
        }
        attribute = "";
    }
    keys
}

pub(crate) fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    Some(text.split_once(start)?.1.split_once(end)?.0)
}
