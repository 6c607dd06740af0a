//! README.md says what the program and its source say: flags with their defaults, parameters, what is not built.
#![expect(
    clippy::disallowed_methods,
    reason = "a test has no event loop to block: it runs the driver and waits"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const README: &str = include_str!("../README.md");
const PARAMETERS: &str = include_str!("../src/backend/rbd/params/mod.rs");
const SNAPSHOT_PARAMETERS: &str = include_str!("../src/backend/rbd/params/snapshot.rs");
const LOCAL_PARAMETERS: &str = include_str!("../src/backend/local/params.rs");
const FLAGS: &str = include_str!("../src/config/ceph_csi.rs");

/// What is found wrong on Ceph, by the controller, by the backend on a node, and by the node itself.
const HEALTH: &[&str] = &[
    include_str!("../src/backend/rbd/pool/health.rs"),
    include_str!("../src/backend/rbd/attach/sysfs.rs"),
    include_str!("../src/node/health.rs"),
];

/// Of a flag: its variable and its default; empty where there is none.
type About = (String, String);

#[test]
fn the_table_of_flags_is_what_help_says() {
    assert_eq!(table_of_flags(), flags_of_help(&help()));
}

#[test]
fn the_table_of_parameters_is_what_is_built() {
    assert_eq!(first_cells("### StorageClass parameters"), list(PARAMETERS, "BUILT"));
}

#[test]
fn the_table_of_snapshot_parameters_is_what_is_built() {
    assert_eq!(first_cells("### VolumeSnapshotClass parameters"), list(SNAPSHOT_PARAMETERS, "BUILT"));
}

#[test]
fn the_table_of_local_parameters_is_what_is_built() {
    let heading = "### StorageClass parameters of --type=local";
    assert_eq!(first_cells(heading), list(LOCAL_PARAMETERS, "BUILT"));
    let changeable = rows(heading).into_iter().filter(|cells| cells[2] == "yes");
    assert_eq!(
        changeable.map(|cells| cells[0].clone()).collect::<BTreeSet<_>>(),
        list(LOCAL_PARAMETERS, "MUTABLE")
    );
}

#[test]
fn the_table_of_health_is_what_is_found() {
    let code = HEALTH.iter().filter_map(|text| text.split("#[cfg(test)]").next());
    let words = code.flat_map(|text| text.split('"').skip(1).step_by(2)).filter(|word| is_reason(word));
    let named = rows("### Health")
        .into_iter()
        .flat_map(|cells| cells[0].split(", ").map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(named.collect::<BTreeSet<_>>(), words.map(str::to_owned).collect());
}

/// CamelCase of two words or more.
fn is_reason(word: &str) -> bool {
    let capitals = word.chars().filter(char::is_ascii_uppercase).count();
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && capitals > 1
        && word.len() > 2 * capitals
        && word.chars().all(|c| c.is_ascii_alphabetic())
}

#[test]
fn parameters_that_are_refused_are_named() {
    assert_eq!(bullet("Parameters refused:"), list(PARAMETERS, "UNBUILT"));
}

#[test]
fn parameters_that_are_ignored_are_named() {
    assert_eq!(bullet("Parameters ignored:"), list(PARAMETERS, "IGNORED"));
}

#[test]
fn flags_that_are_ignored_are_named() {
    assert_eq!(bullet("Flags ignored:"), with_dashes(list(FLAGS, "IGNORED")));
}

#[test]
fn help_is_read_as_clap_writes_it() {
    let text = "Options:\n      --a <A>  What\n      - x: (not --b)\n           it is [env: X=] [default: 1]\n  -v, --v <V>  Loud\n";
    let expected = [("--a", ("X", "1")), ("--v", ("", ""))];
    let expected =
        expected.map(|(name, (env, default))| (name.to_owned(), (env.to_owned(), default.to_owned())));
    assert_eq!(flags_of_help(text), BTreeMap::from(expected));
}

fn help() -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ceph-rbd-csi"));
    let output = command.arg("--help").env_remove("CSI_ENDPOINT").env_remove("NODE_ID").output();
    String::from_utf8(output.expect("the driver runs").stdout).expect("a text")
}

fn flags_of_help(help: &str) -> BTreeMap<String, About> {
    let mut flags: BTreeMap<String, About> = BTreeMap::new();
    let mut last = None;
    for line in help.lines().skip_while(|line| *line != "Options:").skip(1) {
        if line.trim_start().starts_with('-') && !line.trim_start().starts_with("- ") {
            last = line.split([' ', ',', '=', '[']).find(|word| word.starts_with("--")).map(str::to_owned);
        }
        let Some(name) = &last else { continue };
        let (env, default) = flags.entry(name.clone()).or_default();
        if let Some(found) = between(line, "[env: ", "=") {
            *env = found;
        }
        if let Some(found) = between(line, "[default: ", "]") {
            *default = found;
        }
    }
    flags.remove("--help");
    flags.remove("--version");
    flags
}

/// Rows of three cells or more: flag, default, variable, meaning.
fn table_of_flags() -> BTreeMap<String, About> {
    let rows = rows("### Flags");
    let flag = |cells: Vec<String>| (cells[0].clone(), (cells[2].clone(), cells[1].clone()));
    rows.into_iter().map(flag).collect()
}

fn first_cells(heading: &str) -> BTreeSet<String> {
    rows(heading).into_iter().map(|cells| cells[0].clone()).collect()
}

/// The cells of the table below a heading, without backticks.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let section = README.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}")).1;
    let table =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells =
        |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
    table.skip(2).map(cells).collect()
}

/// What stands in backticks in the bullet that begins so.
fn bullet(start: &str) -> BTreeSet<String> {
    let text = README.split_once(&format!("\n- {start}")).unwrap_or_else(|| panic!("no bullet {start}")).1;
    let text = text.split("\n- ").next().unwrap_or(text).split("\n\n").next().unwrap_or(text);
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The first strings of the entries of `const NAME: … = &[…];`
fn list(source: &str, name: &str) -> BTreeSet<String> {
    let text = source.split_once(&format!("const {name}: ")).unwrap_or_else(|| panic!("no list {name}")).1;
    let text = between(text, "=", "];").unwrap_or_else(|| panic!("{name} is no list"));
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn with_dashes(names: BTreeSet<String>) -> BTreeSet<String> {
    names.into_iter().map(|name| format!("--{name}")).collect()
}

fn between(text: &str, start: &str, end: &str) -> Option<String> {
    let rest = text.split_once(start)?.1;
    Some(rest.split_once(end)?.0.to_owned())
}
