//! Links lead somewhere, and what is named is there.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::pages::{Page, pages, read, root};

/// What paths of this repository begin with.
const FOLDERS: &[&str] = &["src/", "tests/", "deploy/", "proto/", ".ci/"];

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut astray = Vec::new();
    for page in &pages {
        let own = page.links().into_iter().filter(|link| !link.contains("://"));
        astray.extend(own.filter(|link| !leads(page, link, &pages)).map(|link| said(page, &link)));
    }
    assert!(astray.is_empty(), "no such file, or no such heading in it: {astray:#?}");
}

#[test]
fn every_document_can_be_found_from_the_readme() {
    let pages = pages();
    let mut found = BTreeSet::from([PathBuf::from("README.md")]);
    for _ in 0..pages.len() {
        let links = pages.iter().filter(|page| found.contains(&page.path)).flat_map(targets);
        found = links.chain(found.iter().cloned()).collect();
    }
    let lost = pages.iter().filter(|page| page.path.starts_with("deploy") && !found.contains(&page.path));
    assert_eq!(lost.map(|page| page.path.clone()).collect::<Vec<_>>(), Vec::<PathBuf>::new());
}

#[test]
fn every_file_that_is_named_exists() {
    let mut missing = Vec::new();
    for page in pages() {
        let code = page.code();
        let words =
            code.iter().flat_map(|code| code.split(|c: char| c.is_whitespace() || "'\",;()=[]".contains(c)));
        let paths = words.map(|word| word.trim_end_matches(['.', ':', '/'])).filter(|word| is_path(word));
        missing.extend(paths.filter(|path| !is_there(Path::new(path))).map(|path| said(&page, path)));
    }
    assert!(missing.is_empty(), "no such file: {missing:#?}");
}

#[test]
fn every_target_of_make_that_is_named_exists() {
    let makefile = read(Path::new("Makefile"));
    let rules = makefile.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
    let targets: BTreeSet<&str> = rules.collect();
    let mut unknown = Vec::new();
    for page in pages() {
        let code = page.code();
        let named = code.iter().filter_map(|code| target(code));
        unknown.extend(named.filter(|name| !targets.contains(name)).map(|name| said(&page, name)));
    }
    assert!(unknown.is_empty(), "no such target: {unknown:#?}");
}

#[test]
fn what_is_not_there_is_seen() {
    let page = Page { path: "deploy/docs/a.md".into(), text: "# A\n".to_owned() };
    let pages = [Page { path: "deploy/docs/a.md".into(), text: "# A\n".to_owned() }];
    assert!(
        leads(&page, "#a", &pages)
            && leads(&page, "a.md#a", &pages)
            && leads(&page, "../../README.md", &pages)
    );
    assert!(!leads(&page, "#b", &pages) && !leads(&page, "b.md", &pages) && !leads(&page, "a.md#b", &pages));
    assert!(is_path("src/main.rs") && !is_path("src/<name>") && !is_there(Path::new("src/nothing.rs")));
    assert_eq!(target("LAB_CEPH=18 make test-vm  # so"), Some("test-vm"));
    assert_eq!(target("cmake x"), None);
}

/// The file is there, and has the heading that the fragment names.
fn leads(page: &Page, link: &str, pages: &[Page]) -> bool {
    let (path, fragment) =
        link.split_once('#').map_or((link, None), |(path, fragment)| (path, Some(fragment)));
    let path = resolved(page, path);
    let Some(fragment) = fragment else { return is_there(&path) };
    match pages.iter().find(|other| other.path == path) {
        Some(other) => other.anchors().contains(fragment),
        None => false,
    }
}

fn targets(page: &Page) -> Vec<PathBuf> {
    let paths = page.links().into_iter().filter(|link| !link.contains("://"));
    paths.map(|link| resolved(page, link.split('#').next().unwrap_or_default())).collect()
}

/// A link's path, which begins at its page, as one of the repository; that of a mere fragment is the page.
fn resolved(page: &Page, link: &str) -> PathBuf {
    if link.is_empty() {
        return page.path.clone();
    }
    let mut path = page.path.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path
}

fn is_path(word: &str) -> bool {
    FOLDERS.iter().any(|folder| word.starts_with(folder)) && !word.contains(['*', '<', '{', '…'])
}

fn is_there(path: &Path) -> bool {
    root().join(path).exists()
}

/// That of `make TARGET`, at the start of a command, behind variables that are set for it.
fn target(command: &str) -> Option<&str> {
    let mut words = command.split_whitespace().skip_while(|word| word.contains('='));
    (words.next()? == "make").then(|| words.next())?.filter(|word| word.starts_with(char::is_alphabetic))
}

fn said(page: &Page, what: &str) -> String {
    format!("{}: {what}", page.path.display())
}
