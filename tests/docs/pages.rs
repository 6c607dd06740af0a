//! The documents as their readers see them: headings, tables, code, links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A document, by its path in the repository.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All of them.
pub(crate) fn pages() -> Vec<Page> {
    let folders = ["", "deploy", "deploy/docs"];
    let mut paths: Vec<PathBuf> = folders.iter().flat_map(|folder| documents(Path::new(folder))).collect();
    paths.sort();
    paths.into_iter().map(|path| Page { text: read(&path), path }).collect()
}

pub(crate) fn configuration() -> Page {
    page("configuration")
}

/// One of deploy/docs.
pub(crate) fn page(name: &str) -> Page {
    let path = PathBuf::from(format!("deploy/docs/{name}.md"));
    Page { text: read(&path), path }
}

fn documents(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder").map(|entry| entry.expect("an entry"));
    let names = entries.map(|entry| folder.join(entry.file_name()));
    names.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
}

pub(crate) fn read(path: &Path) -> String {
    let read = fs::read_to_string(root().join(path));
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Page {
    /// The cells of the first table below a heading, without backticks.
    pub(crate) fn rows(&self, heading: &str) -> Vec<Vec<String>> {
        let (text, start) = (format!("\n{}", self.text), format!("\n{heading}\n"));
        let section = text.split_once(&start).unwrap_or_else(|| panic!("no {heading}")).1;
        let table = section
            .lines()
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'));
        table.skip(2).map(cells).collect()
    }

    /// What the first column of that table names, one name or several.
    pub(crate) fn first_cells(&self, heading: &str) -> BTreeSet<String> {
        let rows = self.rows(heading).into_iter();
        rows.flat_map(|cells| cells[0].split(", ").map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    /// What stands in backticks in the bullet that begins so.
    pub(crate) fn bullet(&self, start: &str) -> BTreeSet<String> {
        let start = format!("\n- {start}");
        let text = self.text.split_once(&start).unwrap_or_else(|| panic!("no bullet {start}")).1;
        let text = text.split("\n- ").next().unwrap_or(text).split("\n\n").next().unwrap_or(text);
        spans(text).into_iter().collect()
    }

    /// Fragments that a link to this page may have, as GitHub makes them.
    pub(crate) fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        for heading in self.prose().lines().filter(|line| line.starts_with('#')) {
            let anchor = anchor(heading.trim_start_matches('#').trim());
            let numbered = (1..).map(|number| format!("{anchor}-{number}"));
            let free = std::iter::once(anchor.clone()).chain(numbered).find(|name| !anchors.contains(name));
            anchors.extend(free);
        }
        anchors
    }

    /// Where its links lead.
    pub(crate) fn links(&self) -> Vec<String> {
        let prose = self.prose();
        let text: String = prose.split('`').step_by(2).collect();
        text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
    }

    /// What stands in backticks, and the lines of its blocks of code.
    pub(crate) fn code(&self) -> Vec<String> {
        let blocks = self.split().1.into_iter().map(|line| line.trim().to_owned());
        self.spans().into_iter().chain(blocks).collect()
    }

    /// What stands in backticks.
    pub(crate) fn spans(&self) -> Vec<String> {
        spans(&self.prose())
    }

    fn prose(&self) -> String {
        self.split().0.join("\n")
    }

    /// Lines outside of blocks of code, and inside.
    fn split(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut prose, mut code, mut fenced, mut after_blank) = (Vec::new(), Vec::new(), false, true);
        for line in self.text.lines() {
            let indented = line.starts_with("    ") && after_blank;
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if fenced || indented {
                code.push(line);
            } else {
                prose.push(line);
            }
            after_blank = line.is_empty() || indented;
        }
        (prose, code)
    }
}

/// A `|` of a cell is written `\|`.
fn cells(row: &str) -> Vec<String> {
    let row = row.replace("\\|", "\u{1}");
    let cell = |cell: &str| cell.trim().replace('`', "").replace('\u{1}', "|");
    row.trim_matches('|').split('|').map(cell).collect()
}

fn spans(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn an_anchor_is_what_github_makes_of_a_heading() {
    assert_eq!(anchor("StorageClass parameters of `--type=local`"), "storageclass-parameters-of---typelocal");
    let page = Page { path: PathBuf::new(), text: "# A, b\n```\n# no heading\n```\n## A b\n".to_owned() };
    assert_eq!(page.anchors(), ["a-b", "a-b-1"].map(str::to_owned).into());
}

#[test]
fn code_is_told_from_prose() {
    let text =
        "Say `make x`, [so](a.md).\n\n    make y [no](b.md)\n\n- a bullet\n    that goes on [c](c.md)\n";
    let page = Page { path: PathBuf::new(), text: text.to_owned() };
    assert_eq!(page.code(), ["make x", "make y [no](b.md)"]);
    assert_eq!(page.links(), ["a.md", "c.md"]);
}
