//! The house rules that no compiler checks, over every file of src/. The tables here are their documentation: each
//! rule comes with a sample that breaks it, so that it can be seen to fail.

use std::fs;
use std::path::Path;

/// The layers, top to bottom: a module imports from those below its own, and from the services.
const LAYERS: &[&str] = &[
    "main",
    "commands",
    "server",
    "liveness",
    "authority",
    "socket",
    "csi",
    "node",
    "backend",
    "fs",
    "luks",
    "ops",
    "host",
];
/// Modules that serve every layer, in the order in which they may use each other: later ones know no earlier one.
const SERVICES: &[&str] = &[
    "labels",
    "cluster",
    "keys",
    "kubernetes",
    "logs",
    "config",
    "id",
    "request",
    "traces",
    "error",
    "metrics",
    "slow",
];
/// Where gRPC types may be named. Below, nothing knows that it is asked over a wire.
const WIRE: &[&str] = &["main.rs", "server.rs", "liveness.rs", "authority.rs", "error.rs", "csi/"];
/// The one folder that starts programs and mounts.
const SEAM: &str = "host/linux/";
/// Who may name a backend: above, nothing knows which one runs, and below, none knows another.
const BACKENDS: &[(&str, &str)] = &[("backend::rbd", "backend/rbd/"), ("backend::local", "backend/local/")];
const CHOOSE: &[&str] = &["main.rs", "commands.rs"];
const MOST_LINES: usize = 400;
/// What is not finished, and what ends the process where an error would do.
const UNFINISHED: &[&str] = &["todo!", "unimplemented!", "TODO", "FIXME"];

/// A file of src/: its path in there, and its text.
struct Source<'a> {
    path: &'a str,
    text: &'a str,
}

/// Says what is wrong, one line each.
type Rule = fn(&Source) -> Vec<String>;

/// A rule, and a path and text that break it.
const RULES: &[(Rule, &str, &str)] = &[
    (opens_with_what_it_is_about, "fs.rs", "use std::fs;\n"),
    (is_short, "fs.rs", LONG),
    (imports_downwards, "node/stage.rs", "use crate::csi::wire;\n"),
    (imports_downwards, "backend/rbd/mod.rs", "fn f() {\n    crate::node::f();\n}\n"),
    (imports_downwards, "error.rs", "use crate::id::VolumeId;\n"),
    (imports_downwards, "new.rs", ""),
    (knows_no_wire, "node/stage.rs", "use tonic::Status;\n"),
    (knows_no_wire, "backend/mod.rs", "use prost::Message;\n"),
    (knows_no_backend, "node/stage.rs", "use crate::backend::rbd::Rbd;\n"),
    (knows_no_backend, "backend/rbd/mod.rs", "use crate::backend::local::Local;\n"),
    (leaves_the_machine_to_the_host, "fs.rs", "use tokio::process::Command;\n"),
    (leaves_the_machine_to_the_host, "host/mod.rs", "sys_mount::unmount(path);\n"),
    (names_every_code, "error.rs", WILDCARD),
    (names_every_code, "error.rs", "no such function\n"),
    (is_finished, "fs.rs", "// TODO: later\n"),
    (is_finished, "fs.rs", "fn f() { todo!() }\n"),
    (does_not_unwrap, "fs.rs", "let x = y\n    .unwrap();\n"),
    (gives_reasons, "fs.rs", "#[expect(\n    clippy::pedantic\n)]\nmod x;\n"),
    (gives_reasons, "fs.rs", "#![allow(dead_code)]\n"),
];

const LONG: &str = match std::str::from_utf8(&[b'\n'; MOST_LINES + 1]) {
    Ok(text) => text,
    Err(_) => "",
};
const WILDCARD: &str = "
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            _ => Code::Internal,
        }
    }
";

#[test]
fn the_source_keeps_every_rule() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let source = Source { path: &path, text: &text };
        for (rule, _, _) in RULES.iter().filter(|(rule, _, _)| applies(*rule, &source)) {
            wrong.extend(rule(&source).into_iter().map(|what| format!("src/{path}: {what}")));
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "house rules are broken:\n{}", wrong.join("\n"));
}

#[test]
fn every_rule_can_fail() {
    for (number, (rule, path, text)) in RULES.iter().enumerate() {
        assert!(!rule(&Source { path, text }).is_empty(), "sample {number} ({path}) breaks no rule");
    }
}

#[test]
fn tests_and_comments_are_told_from_code() {
    let text = "//! A file.\nfn f() {} // no .unwrap() here\n#[cfg(test)]\nmod tests {\n    x.unwrap();\n}\n";
    let source = Source { path: "fs.rs", text };
    assert_eq!(does_not_unwrap(&source), Vec::<String>::new());
    assert_eq!(words("use tonic::Status; // proto").collect::<Vec<_>>(), ["use", "tonic", "Status"]);
}

/// `code()` is in one file only; every other rule is for all.
fn applies(rule: Rule, source: &Source) -> bool {
    !std::ptr::fn_addr_eq(rule, names_every_code as Rule) || source.path == "error.rs"
}

fn opens_with_what_it_is_about(source: &Source) -> Vec<String> {
    complain(!source.text.starts_with("//! "), "it does not open with //! and what lives here")
}

fn is_short(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    complain(lines > MOST_LINES, &format!("{lines} lines: split it, {MOST_LINES} are the most"))
}

fn imports_downwards(source: &Source) -> Vec<String> {
    let own = module_of(source.path);
    let Some(below) = importable(own) else {
        return vec![format!("module {own} has no place in the layers of tests/tidy.rs")];
    };
    let named = source.text.lines().flat_map(|line| code(line).split("crate::").skip(1));
    let named = named.filter_map(|rest| words(rest).next());
    let upward = named.filter(|name| *name != own && !below.contains(name));
    upward.map(|name| format!("{own} imports {name}, which is not below it")).collect()
}

/// What a module may import: the layers below it and the services; a service, those after it. None: unknown.
fn importable(module: &str) -> Option<Vec<&'static str>> {
    let after = |list: &'static [&'static str]| {
        let place = list.iter().position(|name| *name == module)?;
        Some(list[place + 1..].to_vec())
    };
    after(SERVICES).or_else(|| Some([after(LAYERS)?, SERVICES.to_vec()].concat()))
}

fn module_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

fn knows_no_wire(source: &Source) -> Vec<String> {
    let allowed = WIRE.iter().any(|place| source.path.starts_with(place));
    if allowed { Vec::new() } else { naming(source, &["tonic", "tonic_prost", "prost", "proto"]) }
}

fn knows_no_backend(source: &Source) -> Vec<String> {
    let others =
        BACKENDS.iter().filter(|(_, home)| !CHOOSE.contains(&source.path) && !source.path.starts_with(home));
    let named = |(name, _): &&(&str, &str)| source.text.lines().any(|line| code(line).contains(name));
    others
        .filter(named)
        .map(|(name, _)| format!("it names {name}, which is for {CHOOSE:?} to choose"))
        .collect()
}

fn leaves_the_machine_to_the_host(source: &Source) -> Vec<String> {
    if source.path.starts_with(SEAM) { Vec::new() } else { naming(source, &["Command", "sys_mount"]) }
}

/// Each arm of `Error::code` names variants: a new one without a code does not compile.
fn names_every_code(source: &Source) -> Vec<String> {
    let body = source.text.split_once("fn code(&self)").map(|(_, rest)| rest);
    let Some(body) = body.and_then(|rest| rest.split_once("\n    }\n")).map(|(body, _)| body) else {
        return vec!["there is no fn code(&self) to look at".to_owned()];
    };
    let arms = body.lines().map(str::trim).filter(|line| line.contains("=>"));
    let odd = arms.filter(|arm| !arm.starts_with("Self::") && !arm.starts_with("| Self::"));
    odd.map(|arm| format!("an arm of code() names no variant: {arm}")).collect()
}

fn is_finished(source: &Source) -> Vec<String> {
    let found = |line: &&str| UNFINISHED.iter().any(|mark| line.contains(mark));
    source.text.lines().filter(found).map(|line| format!("not finished: {}", line.trim())).collect()
}

fn does_not_unwrap(source: &Source) -> Vec<String> {
    let lines = without_tests(source.text).lines().filter(|line| code(line).contains(".unwrap()"));
    lines.map(|line| format!("an error becomes a panic: {}", line.trim())).collect()
}

fn gives_reasons(source: &Source) -> Vec<String> {
    let attributes = source.text.split("#[").chain(source.text.split("#![")).skip(1);
    let lints = attributes.filter(|rest| ["expect(", "allow("].iter().any(|start| rest.starts_with(start)));
    let attributes = lints.filter_map(|rest| rest.split_once(")]").map(|(attribute, _)| attribute));
    let bare = attributes.filter(|text| text.starts_with("allow(") || !text.contains("reason = \""));
    bare.map(|text| format!("use expect, and give a reason: {}", text.replace('\n', " "))).collect()
}

fn naming(source: &Source, forbidden: &[&str]) -> Vec<String> {
    let named = source.text.lines().flat_map(words).filter(|word| forbidden.contains(word));
    named.map(|word| format!("it names {word}, which is not for this file")).collect()
}

fn complain(wrong: bool, what: &str) -> Vec<String> {
    wrong.then(|| what.to_owned()).into_iter().collect()
}

/// A line without its comment. A `//` inside a string (`https://`) cuts too: what is lost names no module.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let between = |c: char| !c.is_alphanumeric() && c != '_';
    code(line).split(between).filter(|word| !word.is_empty())
}

/// Unit tests stand at the end of a file.
fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod tests").map_or(text, |(code, _)| code)
}

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &root, &mut files);
    assert!(files.len() > 10, "src/ was not found: {} files", files.len());
    files
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).expect("below src").to_string_lossy().into_owned();
            files.push((name, fs::read_to_string(&path).expect("a text")));
        }
    }
}
